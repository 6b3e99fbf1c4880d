// Looks after operations that run on a GPU, where nobody waits for them on the host.
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
#include "worker/trainer/comm/peer_watch.h"
#include "worker/trainer/device/moment.h"

namespace scalelab::trainer {

// A collective operation between two points of the communicator's stream.
class DeviceOperation : public Operation {
 public:
  DeviceOperation(const char* what, Moment begin, std::vector<at::Tensor> tensors)
      : Operation(what), begin(std::move(begin)), tensors(std::move(tensors)) {}
  const Moment begin;                     // everything before it is done
  Moment end;                             // its result is in place
  const std::vector<at::Tensor> tensors;  // kept as long as the GPU uses them
};

// Tells the PeerWatch how far this rank is, and finds out when an operation takes longer than `timeout`, when
// NCCL reports an error, and when another rank is known to be gone. After the first of these everything fails
// with the same sentence, and `abort` has been called, which frees the GPU from what it waits for.
class NcclWatchdog {
 public:
  // `trouble` tells what NCCL has to report; empty: nothing. Both are called on the watchdog's thread.
  NcclWatchdog(PeerWatch& watch, std::chrono::milliseconds timeout, std::function<std::string()> trouble,
               std::function<void()> abort);
  ~NcclWatchdog();

  // In the order of the stream. Its time counts from its turn on the GPU.
  void Add(std::shared_ptr<DeviceOperation> operation);
  // Returns when all that were added are over; throws as ThrowIfFailed.
  void Drain();

  void ThrowIfFailed() const;
  // Ends everything because of what this rank has seen (as PeerWatch::Investigate); throws as ThrowIfFailed.
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

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<DeviceOperation>> running_;
  bool closing_ = false, investigating_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace scalelab::trainer
