#include "worker/trainer/comm/nccl_channel.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/trainer/comm/nccl_types.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// The interval between polls of a pending message, which the other rank may send much later.
constexpr std::chrono::microseconds kChannelPoll{50};
constexpr std::chrono::seconds kChannelFarewell{5};

class MessageWork : public Work {
 public:
  explicit MessageWork(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}
  void Wait() override { operation_->Wait(); }
  bool Done() override { return operation_->done(); }

 private:
  const std::shared_ptr<Operation> operation_;
};

}  // namespace

class NcclChannel::Message : public Operation {
 public:
  Message(const char* what, int peer, const at::Tensor& tensor, Moment ready)
      : Operation(what, peer), tensor(tensor), ready(std::move(ready)) {}
  const at::Tensor tensor;
  const Moment ready;  // the tensor has its values
};

NcclChannel::NcclChannel(KeyStore& store, NcclWatchdog& watchdog, at::Device device, int rank, int from,
                         int to, std::chrono::milliseconds timeout)
    : store_(store),
      watchdog_(watchdog),
      device_(device),
      rank_(rank),
      from_(from),
      to_(to),
      timeout_(timeout),
      handle_(Nccl(), NcclHandle::Mode::kNonBlocking) {
  thread_ = std::thread(&NcclChannel::Run, this);
}

NcclChannel::~NcclChannel() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::unique_ptr<Work> NcclChannel::Start(const at::Tensor& tensor) {
  const bool send = rank_ == from_;
  auto message =
      std::make_shared<Message>(send ? "send" : "receive", send ? to_ : from_, tensor, Moment(device_));
  message->deadline = std::chrono::steady_clock::now() + timeout_;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(message);
  }
  changed_.notify_all();
  return std::make_unique<MessageWork>(std::move(message));
}

void NcclChannel::Run() {
  const c10::cuda::CUDAGuard gpu(device_.index());
  const DeviceStream stream(device_);
  const StreamScope scope(stream);
  bool joined = false, failed = false;
  while (true) {
    std::shared_ptr<Message> message;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) break;
      message = std::move(queue_.front());
      queue_.pop_front();
    }
    std::exception_ptr error;
    try {
      if (!joined) Join(*message);
      joined = true;
      Carry(*message);
    } catch (const TrainerError&) {
      error = std::current_exception();
    } catch (const std::exception& e) {
      try {
        watchdog_.Fail(std::string(message->what) + " failed (" + FirstLine(e.what()) + ")", message->peer);
      } catch (...) {
        error = std::current_exception();
      }
    }
    failed |= error != nullptr;
    message->Complete(error);
  }
  if (!joined || failed) return;
  try {
    const auto deadline = std::chrono::steady_clock::now() + kChannelFarewell;
    handle_.Finish([&] {
      if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("timeout");
    });
  } catch (const std::exception&) {
    // All messages were carried out. The destructor of the handle aborts what is left.
  }
}

void NcclChannel::ThrowIfLateOrFailed(const Message& message) {
  watchdog_.ThrowIfFailed();
  if (std::chrono::steady_clock::now() > message.deadline) {
    watchdog_.Fail(LateSentence(message, timeout_), message.peer);
  }
  std::lock_guard lock(mutex_);
  if (closing_) throw TrainerError("the communicator was closed", ErrorKind::kCommunication);
}

// The sender creates the id of the NCCL communicator.
void NcclChannel::Join(const Message& message) {
  const std::string key = "nccl/" + std::to_string(from_) + "-" + std::to_string(to_);
  std::string id;
  if (rank_ == from_) {
    id = handle_.NewId();
    store_.Set(key, id);
  } else {
    std::optional<std::string> found;
    while (!(found = store_.Find(key))) {
      ThrowIfLateOrFailed(message);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    id = *std::move(found);
  }
  handle_.Join(id, 2, rank_ == from_ ? 0 : 1, device_.index(), [&] { ThrowIfLateOrFailed(message); });
}

void NcclChannel::Carry(Message& message) {
  const at::NoGradGuard no_grad;
  message.ready.Block();
  const bool send = rank_ == from_;
  const at::Tensor staged = message.tensor.is_cuda() ? message.tensor
                            : send                   ? message.tensor.to(device_)
                                                     : at::empty_like(message.tensor, device_);
  handle_.Call(
      [&](ncclComm_t comm) {
        const cudaStream_t current = c10::cuda::getCurrentCUDAStream(device_.index());
        const auto count = static_cast<size_t>(staged.numel());
        return send ? ncclSend(staged.data_ptr(), count, NcclTypeOf(staged), 1, comm, current)
                    : ncclRecv(staged.data_ptr(), count, NcclTypeOf(staged), 0, comm, current);
      },
      [&] { ThrowIfLateOrFailed(message); });
  for (const Moment arrived(device_); !arrived.Over(); std::this_thread::sleep_for(kChannelPoll)) {
    ThrowIfLateOrFailed(message);
  }
  if (!send && !message.tensor.is_cuda()) message.tensor.copy_(staged);
}

}  // namespace scalelab::trainer
