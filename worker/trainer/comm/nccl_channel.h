// Sends and receives between two ranks over NCCL.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "worker/trainer/comm/nccl_handle.h"
#include "worker/trainer/comm/nccl_watchdog.h"
#include "worker/trainer/comm/rendezvous.h"

namespace scalelab::trainer {

// One direction between two ranks. It has an NCCL communicator of two ranks, a stream and a thread of its
// own, because operations on one communicator run one after another, and a receive may wait for a message
// that comes later in the collective order. The two ranks connect at the first message.
class NcclChannel {
 public:
  // `store` and `watchdog` must outlive the channel.
  NcclChannel(KeyStore& store, NcclWatchdog& watchdog, at::Device device, int rank, int from, int to,
              std::chrono::milliseconds timeout);
  // Ends the thread. Messages that were not carried out fail.
  ~NcclChannel();

  // Sends or receives, in the order of the calls.
  std::unique_ptr<Work> Start(const at::Tensor& tensor);
  // For the watchdog: returns NCCL's error on this channel; ends everything on this channel.
  std::string AsyncError() { return handle_.AsyncError(); }
  void Abort() { handle_.Abort(); }

 private:
  class Message;

  void Run();
  void Join(const Message& message);
  void Carry(Message& message);
  void ThrowIfLateOrFailed(const Message& message);

  KeyStore& store_;
  NcclWatchdog& watchdog_;
  const at::Device device_;
  const int rank_, from_, to_;
  const std::chrono::milliseconds timeout_;
  NcclHandle handle_;  // used by the thread; not blocking, because a message may come late

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Message>> queue_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last member: uses all of the above
};

}  // namespace scalelab::trainer
