// Monitors operations on a GPU, because no host thread waits for them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "worker/trainer/comm/operation.h"
#include "worker/trainer/comm/peers/peer_watch.h"
#include "worker/trainer/device/device_event.h"

namespace scalelab::trainer {

// A collective operation between two points of the communicator's stream. At `begin`, earlier work has ended.
// At `end`, the result is in place. Both times are on the device's clock.
class DeviceOperation : public Operation {
 public:
  DeviceOperation(const char* what, DeviceEvent since, std::vector<at::Tensor> tensors)
      : Operation(what), tensors(std::move(tensors)) {
    begin = std::move(since);
  }
  // Return whether the device has reached the begin and the end of the operation. Tests override them.
  virtual bool Begun() const { return begin.Over(); }
  virtual bool Ended() const { return end.Over(); }

  const std::vector<at::Tensor> tensors;  // kept alive while the GPU uses them

 private:
  // Does nothing: `end` is a point on the stream, and other threads use it.
  void SetEnd() override {}
};

// Reports this rank's progress to the PeerWatch. Detects operations that exceed `timeout`, errors that NCCL
// reports, and lost ranks. After the first of these failures, all operations fail with the same message. Only
// then does the watchdog abort the kernels that wait on the GPU, because they end with arbitrary data that no
// thread may use as a result.
class NcclWatchdog {
 public:
  struct Hooks {
    // Selects the GPU. Called first on the watchdog's thread. Without a selected GPU, the thread would create
    // a context on the first GPU of the node, which takes memory.
    std::function<void()> select_gpu;
    // Returns NCCL's error, or "". Called on the watchdog's thread.
    std::function<std::string()> trouble;
    // Ends the kernels that wait on the GPU. Called once on the watchdog's thread, after a failure was
    // announced. May block until the training thread has left its operation and destroyed its graphs.
    std::function<void()> abort;
  };

  // `members` are the ranks of a group in the run; empty means all ranks.
  NcclWatchdog(PeerWatch& watch, std::chrono::milliseconds timeout, Hooks hooks,
               std::vector<int> members = {});
  ~NcclWatchdog();

  // Returns the time for deadlines of operations.
  RunningClock::time_point Now() const { return watch_.Now(); }

  // Announces that the caller is about to enqueue an operation. The call of NCCL may wait for other ranks,
  // but at most for `timeout`. If `operation` is null, announces that the call has ended.
  void Enqueuing(std::shared_ptr<const DeviceOperation> operation);
  // Adds an operation, in stream order. Its timeout counts from its start on the GPU.
  void Add(std::shared_ptr<DeviceOperation> operation);
  // Blocks until all added operations have ended. Throws like ThrowIfFailed.
  void Drain();
  // Blocks the host until the operation has ended. Throws like ThrowIfFailed.
  void Await(const DeviceOperation& operation) const;

  void ThrowIfFailed() const;
  // Ends all operations because of a failure on this rank. The arguments are those of PeerWatch::Investigate.
  // Throws like ThrowIfFailed.
  [[noreturn]] void Fail(const std::string& symptom, int peer);

 private:
  void Run();
  void Look();
  std::shared_ptr<const DeviceOperation> LateToEnqueue() const;
  void Condemn(const std::string& symptom, int peer);

  PeerWatch& watch_;
  const std::chrono::milliseconds timeout_;
  const Hooks hooks_;
  const std::vector<int> members_;
  std::atomic<bool> failed_ = false;

  mutable std::mutex mutex_;  // guards the members below, except thread_
  std::condition_variable changed_;
  std::deque<std::shared_ptr<DeviceOperation>> running_;
  std::shared_ptr<const DeviceOperation> enqueuing_;
  RunningClock::time_point enqueue_deadline_;
  bool closing_ = false;
  bool investigating_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // the last member, because it uses all others
};

}  // namespace scalelab::trainer
