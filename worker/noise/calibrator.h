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
  // `cpus` are those that the worker may use.
  Calibrator(EventLoop& loop, std::vector<int> cpus);
  // Waits for the end of a calibration, which it cuts short.
  ~Calibrator();

  // Starts a calibration, and calls `done` on the loop's thread when last() has its result. Not while one is running.
  void Start(absl::Duration budget, std::function<void()> done);
  bool running() const { return thread_.joinable(); }
  const std::optional<v1::Calibration>& last() const { return last_; }
  // Returns whether there is no calibration that is at most `interval` old.
  bool Stale(absl::Duration interval) const;

 private:
  void Finish(v1::Calibration calibration);

  EventLoop& loop_;
  const std::vector<int> cpus_;
  std::thread thread_;
  std::atomic<bool> stop_ = false;
  std::function<void()> done_;
  std::optional<v1::Calibration> last_;
  absl::Duration ended_at_;      // SteadyNow of the end of the last one
  std::shared_ptr<bool> alive_;  // expires with this object: a late result checks it
};

}  // namespace scalelab::worker
