// Adds the energy and the state of a node's devices in the measured window to the finish event of the node's first rank.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "scalelab/v1/worker.pb.h"
#include "worker/power/power_history.h"

namespace scalelab::worker {

class RunPower {
 public:
  RunPower(const v1::RunSpec& spec, std::shared_ptr<const PowerHistory> history);

  const std::shared_ptr<const PowerHistory>& history() const { return history_; }
  // Must be called with all batches of one rank in the order of their lines, before they are sent. A batch
  // that is sent again may be passed again. Adds metrics to the batch's finish event, unless the rank has
  // reported metrics of these names.
  void Observe(v1::EventBatch& batch);

 private:
  struct Step {
    double time = 0;
    std::optional<double> seconds;
  };

  void AddStep(const Step& step);
  void AddSpan(double begin, double end);
  std::map<std::string, double> Results(const v1::Event& finish) const;

  const int64_t warmup_;
  const double global_batch_;
  const std::shared_ptr<const PowerHistory> history_;
  int64_t next_line_ = 0;  // lines before this one were observed
  int64_t steps_ = 0, measured_ = 0;
  std::optional<double> start_, last_step_;  // times of events
  double seconds_ = 0;
  PowerValues sums_ = {};  // sums over the measured window
  std::optional<std::map<std::string, double>> results_;
};

}  // namespace scalelab::worker
