// The counters of the node from the start to the end of an attempt.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "scalelab/v1/run.pb.h"
#include "worker/noise/counters.h"

namespace scalelab::worker {

// What the node did between two moments.
struct NodeUse {
  Counters before, after;
  std::optional<double> own_before, own_after;  // CPU seconds of the attempt's processes
  double seconds = 0;
};

// Sets other_load, steal and throttle_events from what is known.
void SetUse(const NodeUse& use, v1::NodeNoise* noise);

class AttemptMeter {
 public:
  // `own_cpu` returns the CPU seconds that this node has spent for the attempt's processes so far; may be empty.
  using OwnCpu = std::function<std::optional<double>()>;

  void Start(std::vector<int> cpus, OwnCpu own_cpu);
  // Sets what was measured since Start; does nothing without Start, and when called again.
  void Finish(v1::NodeNoise* noise);

 private:
  bool started_ = false;
  std::vector<int> cpus_;
  OwnCpu own_cpu_;
  NodeUse use_;
  absl::Duration started_at_;
};

}  // namespace scalelab::worker
