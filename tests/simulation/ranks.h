// The ranks of one attempt. They write real event files into its directory on the shared file system, which outlives workers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scalelab/v1/worker.pb.h"
#include "tests/simulation/model.h"
#include "tests/simulation/timers.h"
#include "tests/simulation/world.h"

namespace scalelab::simulation {

class Ranks {
 public:
  Ranks(World& world, Model& model, const v1::SynchronizeResponse::DesiredAttempt& desired);

  bool live() const { return live_; }
  int size() const { return static_cast<int>(lines_.size()); }  // number of ranks
  // Number of lines that a rank has written.
  int64_t lines(int rank) const { return lines_[rank]; }
  // Calls `changed` when lines were written or the ranks ended.
  void Follow(std::function<void()> changed) { followers_.push_back(std::move(changed)); }

  // The directory must exist.
  void Launch();
  // Simulates SIGTERM: the ranks end within five seconds. SIGKILL follows after `grace`.
  void Stop(absl::Duration grace);
  // SIGUSR1: they write a checkpoint, if they write any, and end within five seconds.
  void Notify();
  // All ranks end now with this status.
  void End(int status);
  void Suspend(bool suspend);
  int exit_status() const { return exit_status_; }

 private:
  void WriteLine();
  void Append();
  std::string Line(int rank) const;
  void Changed();

  World& world_;
  Model& model_;
  const std::string token_, run_, directory_;
  std::vector<int64_t> lines_;
  const bool checkpoints_;    // each line but the first and the last reports a checkpoint of one more step
  int64_t first_step_ = 0;    // steps of the checkpoint that they continue from
  int64_t last_line_;         // the finish line
  int64_t fails_at_ = -1;     // line at which a rank fails
  bool error_event_ = false;  // whether this rank writes an error line first
  bool last_words_ = false;   // the next line is a checkpoint before an early end
  absl::Duration pause_;      // between two lines
  bool live_ = false, suspended_ = false;
  int exit_status_ = 0;
  Timers timers_;
  std::vector<std::function<void()>> followers_;
};

// The ranks of all attempts that were launched, by token.
using Directories = std::map<std::string, std::shared_ptr<Ranks>>;

}  // namespace scalelab::simulation
