// What one rank sends to another over NCCL, beside the collective operations.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "worker/trainer/comm/nccl_handle.h"
#include "worker/trainer/comm/nccl_watchdog.h"
#include "worker/trainer/comm/rendezvous.h"

namespace scalelab::trainer {

// One direction between two ranks: a communicator of two, a stream and a thread of its own, because
// operations on one communicator follow each other, and a receive may wait for what comes later in the
// collective order. The two ranks join at the first message.
class NcclChannel {
 public:
  // `store` and `watchdog` must outlive it.
  NcclChannel(KeyStore& store, NcclWatchdog& watchdog, at::Device device, int rank, int from, int to,
              std::chrono::milliseconds timeout);
  // Ends the thread; what was not carried out fails.
  ~NcclChannel();

  // Sends or receives, in the order of the calls.
  std::unique_ptr<Work> Start(const at::Tensor& tensor);
  // From the watchdog: NCCL's own trouble here, and the end of everything here.
  std::string AsyncError() { return handle_.AsyncError(); }
  void Abort() { handle_.Abort(); }

 private:
  class Message;

  void Run();
  void Join(const Message& message);
  void Carry(Message& message);
  void ThrowIfHopeless(const Message& message);

  KeyStore& store_;
  NcclWatchdog& watchdog_;
  const at::Device device_;
  const int rank_, from_, to_;
  const std::chrono::milliseconds timeout_;
  NcclHandle handle_;  // of the thread

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Message>> queue_;
  bool closing_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace scalelab::trainer
