// Sends or receives tensors on a device, in the order of the device's streams.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "worker/trainer/comm/nccl_watchdog.h"

namespace scalelab::trainer {

// One direction between two ranks. A thread enqueues the transfers on a separate stream in the order of the
// calls, and monitors them for timeouts and failures. Wait blocks the host until the transfer is enqueued,
// and then makes the calling thread's current stream wait for the transfer. The first transfer is enqueued
// when both ranks have connected. For a tensor in host memory, which is copied through the device, Wait
// blocks the host until the end of the transfer.
class DeviceChannel {
 public:
  // A function that throws if the caller must end because of a timeout or a failure.
  using Check = std::function<void()>;
  // A transfer on the device.
  struct Transfer {
    std::function<bool()> over;   // returns whether the transfer has ended
    std::function<void()> block;  // makes later work on the calling thread's current stream wait for its end
  };
  // Functions that the channel's thread calls within `on_stream`. `connect` and `enqueue` may wait, and
  // call `check` repeatedly.
  struct Hooks {
    // Calls its argument with the channel's stream as the thread's current stream.
    std::function<void(const std::function<void()>& body)> on_stream;
    // Connects the two ranks. Called before the first transfer.
    std::function<void(const Check& check)> connect;
    // Enqueues the transfer of a tensor on the device.
    std::function<Transfer(const at::Tensor& tensor, const Check& check)> enqueue;
    // Called after the last transfer, if none has failed.
    std::function<void()> finish;
  };

  // `peer` is the other rank. `watchdog` must outlive the channel.
  DeviceChannel(NcclWatchdog& watchdog, at::Device device, bool send, int peer,
                std::chrono::milliseconds timeout, Hooks hooks);
  // Ends the thread after the transfers that are enqueued. Transfers that are not enqueued fail.
  ~DeviceChannel();

  std::unique_ptr<Work> Start(const at::Tensor& tensor);

 private:
  class Message;
  class MessageWork;

  void Run();
  // Returns the next message to enqueue. Returns null if an enqueued message may have ended, or if there are
  // no more messages.
  std::shared_ptr<Message> Next();
  void Enqueue(const std::shared_ptr<Message>& message);
  // Completes the messages whose transfers have ended.
  void EndTransfers();
  // Returns the error of a message whose transfer has failed with `e`, the current exception.
  std::exception_ptr ErrorOf(const Message& message, const std::exception& e);
  void ThrowIfLateOrFailed(const Message& message);

  NcclWatchdog& watchdog_;
  const at::Device device_;
  const bool send_;
  const int peer_;
  const std::chrono::milliseconds timeout_;
  const Hooks hooks_;
  bool connected_ = false, failed_ = false;         // used by the thread
  std::deque<std::shared_ptr<Message>> in_flight_;  // messages on the stream; used by the thread

  std::mutex mutex_;  // guards queue_ and closing_
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Message>> queue_;
  bool closing_ = false;
  std::thread thread_;  // the last member, because it uses all others
};

}  // namespace scalelab::trainer
