// Watches operations on a GPU, for which no host thread waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "worker/trainer/comm/operation.h"
#include "worker/trainer/comm/peer_watch.h"
#include "worker/trainer/device/moment.h"

namespace scalelab::trainer {

// A collective operation between two points of the communicator's stream, on the device's clock: at `begin` the work
// before the operation is done, at `end` the result is in place.
class DeviceOperation : public Operation {
 public:
  DeviceOperation(const char* what, Moment since, std::vector<at::Tensor> tensors)
      : Operation(what), tensors(std::move(tensors)) {
    begin = std::move(since);
  }
  const std::vector<at::Tensor> tensors;  // kept alive while the GPU uses them
};

// Reports this rank's progress to the PeerWatch. Detects operations that exceed `timeout`, errors that NCCL
// reports, and lost ranks. After the first of these all operations fail with the same message, and `abort`
// has been called, which ends the kernels that wait on the GPU.
class NcclWatchdog {
 public:
  // `trouble` returns NCCL's error, or an empty string. Both functions are called on the watchdog's thread.
  NcclWatchdog(PeerWatch& watch, std::chrono::milliseconds timeout, std::function<std::string()> trouble,
               std::function<void()> abort);
  ~NcclWatchdog();

  // Adds an operation, in stream order. Its timeout counts from its start on the GPU.
  void Add(std::shared_ptr<DeviceOperation> operation);
  // Blocks until all added operations have ended. Throws like ThrowIfFailed.
  void Drain();

  void ThrowIfFailed() const;
  // Ends everything because of a failure on this rank (the arguments are those of PeerWatch::Investigate).
  // Throws like ThrowIfFailed.
  [[noreturn]] void Fail(const std::string& symptom, int peer);

 private:
  void Run();
  void Look();
  void Condemn(const std::string& symptom, int peer);

  PeerWatch& watch_;
  const std::chrono::milliseconds timeout_;
  const std::function<std::string()> trouble_;
  const std::function<void()> abort_;
  std::atomic<bool> failed_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<DeviceOperation>> running_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool investigating_ ABSL_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last member: uses all of the above
};

}  // namespace scalelab::trainer
