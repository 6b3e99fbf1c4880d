// Calibrates the node on a thread, and keeps the last calibration.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "scalelab/v1/run.pb.h"
#include "worker/process/event_loop.h"

namespace scalelab::worker {

// All methods run on the event loop's thread.
class Calibrator {
 public:
  // `cpus` are the CPUs that the worker may use.
  Calibrator(EventLoop& loop, std::vector<int> cpus);
  // Stops a calibration that is in progress, and waits for its end.
  ~Calibrator();

  // Starts a calibration. Calls `done` on the loop's thread when last() has its result. Must not be called
  // while a calibration is running.
  void Start(absl::Duration budget, std::function<void()> done);
  bool running() const { return done_ != nullptr; }
  const std::optional<v1::Calibration>& last() const { return last_; }
  // Returns whether the last calibration is older than `interval`, or there is none.
  bool Stale(absl::Duration interval) const;

 private:
  void Finish(v1::Calibration calibration);

  EventLoop& loop_;
  const std::vector<int> cpus_;
  std::thread thread_;
  std::atomic<bool> stop_ = false;
  std::function<void()> done_;  // empty if no calibration is running
  std::optional<v1::Calibration> last_;
  absl::Duration ended_at_;      // SteadyNow at the end of the last calibration
  std::shared_ptr<bool> alive_;  // expires with this object, so that a late result is ignored
};

}  // namespace scalelab::worker
