#include "worker/trainer/comm/device_channel.h"

#include <exception>
#include <utility>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// The interval between polls of transfers in flight. They may wait for the other rank for a long time.
constexpr std::chrono::microseconds kChannelPoll{50};

}  // namespace

class DeviceChannel::Message : public Operation {
 public:
  Message(const char* what, int peer, const at::Tensor& tensor, bool staged, DeviceEvent ready)
      : Operation(what, peer), tensor(tensor), staged(staged), ready(std::move(ready)) {}

  void Enqueued(Transfer started) {
    std::lock_guard lock(mutex_);
    transfer = std::move(started);
    enqueued_ = true;
    changed_.notify_all();
  }
  // Fails the message. Its waiters, if any, return.
  void Fail(std::exception_ptr error) {
    Complete(std::move(error));
    std::lock_guard lock(mutex_);
    enqueued_ = true;
    changed_.notify_all();
  }
  // Blocks until the transfer is enqueued or has failed.
  void AwaitEnqueued() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return enqueued_; });
  }

  const at::Tensor tensor;
  const bool staged;        // whether the tensor is in host memory, and is copied through the device
  const DeviceEvent ready;  // when the tensor has its values
  at::Tensor on_device;
  Transfer transfer;  // set before the message is enqueued

 private:
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool enqueued_ = false;
};

class DeviceChannel::MessageWork : public Work {
 public:
  MessageWork(const NcclWatchdog& watchdog, std::shared_ptr<Message> message)
      : watchdog_(watchdog), message_(std::move(message)) {}
  void Wait() override {
    if (message_->staged) return message_->Wait();
    message_->AwaitEnqueued();
    if (message_->done()) message_->Wait();  // throws if it has failed
    watchdog_.ThrowIfFailed();
    message_->transfer.block();
  }
  bool Done() override { return message_->done(); }

 private:
  const NcclWatchdog& watchdog_;
  const std::shared_ptr<Message> message_;
};

DeviceChannel::DeviceChannel(NcclWatchdog& watchdog, at::Device device, bool send, int peer,
                             std::chrono::milliseconds timeout, Hooks hooks)
    : watchdog_(watchdog),
      device_(device),
      send_(send),
      peer_(peer),
      timeout_(timeout),
      hooks_(std::move(hooks)) {
  thread_ = std::thread([this] { hooks_.on_stream([this] { Run(); }); });
}

DeviceChannel::~DeviceChannel() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::unique_ptr<Work> DeviceChannel::Start(const at::Tensor& tensor) {
  auto message = std::make_shared<Message>(send_ ? "send" : "receive", peer_, tensor,
                                           tensor.device() != device_, DeviceEvent(device_));
  message->deadline = watchdog_.Now() + timeout_;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(message);
  }
  changed_.notify_all();
  return std::make_unique<MessageWork>(watchdog_, std::move(message));
}

void DeviceChannel::Run() {
  while (true) {
    std::shared_ptr<Message> message = Next();
    if (!message && in_flight_.empty()) break;
    try {
      EndTransfers();
    } catch (const std::exception& e) {
      const std::exception_ptr error = ErrorOf(*in_flight_.front(), e);
      for (const auto& lost : std::exchange(in_flight_, {})) lost->Fail(error);
    }
    if (!message) continue;
    try {
      Enqueue(message);
      in_flight_.push_back(std::move(message));
    } catch (const std::exception& e) {
      message->Fail(ErrorOf(*message, e));
    }
  }
  if (connected_ && !failed_) hooks_.finish();
}

std::shared_ptr<DeviceChannel::Message> DeviceChannel::Next() {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return closing_ || !queue_.empty(); };
  if (in_flight_.empty()) {
    changed_.wait(lock, ready);
  } else if (!closing_) {
    changed_.wait_for(lock, kChannelPoll, ready);
  } else {
    lock.unlock();
    std::this_thread::sleep_for(kChannelPoll);
    lock.lock();
  }
  if (queue_.empty()) return nullptr;
  std::shared_ptr<Message> message = std::move(queue_.front());
  queue_.pop_front();
  return message;
}

void DeviceChannel::Enqueue(const std::shared_ptr<Message>& message) {
  const at::NoGradGuard no_grad;
  const auto check = [&] {
    ThrowIfLateOrFailed(*message);
    std::lock_guard lock(mutex_);
    if (closing_) throw TrainerError("the communicator was closed", ErrorKind::kCommunication);
  };
  check();
  if (!connected_) hooks_.connect(check);
  connected_ = true;
  message->ready.Block();
  message->on_device = !message->staged ? message->tensor
                       : send_          ? message->tensor.to(device_)
                                        : at::empty_like(message->tensor, device_);
  message->Enqueued(hooks_.enqueue(message->on_device, check));
}

void DeviceChannel::EndTransfers() {
  const at::NoGradGuard no_grad;
  for (; !in_flight_.empty(); in_flight_.pop_front()) {
    Message& first = *in_flight_.front();
    ThrowIfLateOrFailed(first);
    if (!first.transfer.over()) return;
    watchdog_.ThrowIfFailed();  // a transfer also counts as over if it was aborted
    if (!send_ && first.staged) first.tensor.copy_(first.on_device);
    first.Complete(nullptr);
  }
}

void DeviceChannel::ThrowIfLateOrFailed(const Message& message) {
  watchdog_.ThrowIfFailed();
  if (watchdog_.Now() > message.deadline) watchdog_.Fail(LateSentence(message, timeout_), message.peer);
}

std::exception_ptr DeviceChannel::ErrorOf(const Message& message, const std::exception& e) {
  failed_ = true;
  if (dynamic_cast<const TrainerError*>(&e) != nullptr) return std::current_exception();
  try {
    watchdog_.Fail(std::string(message.what) + " failed (" + FirstLine(e.what()) + ")", message.peer);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace scalelab::trainer
