#include "worker/trainer/comm/nccl_channel.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/trainer/comm/nccl_types.h"

namespace scalelab::trainer {
namespace {

constexpr std::chrono::seconds kChannelFarewell{5};

}  // namespace

NcclChannel::NcclChannel(KeyStore& store, NcclWatchdog& watchdog, at::Device device, int rank, int from,
                         int to, std::chrono::milliseconds timeout)
    : store_(store),
      device_(device),
      send_(rank == from),
      key_("nccl/" + std::to_string(from) + "-" + std::to_string(to)),
      handle_(Nccl(), NcclHandle::Mode::kNonBlocking),
      channel_(watchdog, device, send_, send_ ? to : from, timeout, MakeHooks()) {}

DeviceChannel::Hooks NcclChannel::MakeHooks() {
  return {.on_stream =
              [this](const std::function<void()>& body) {
                const c10::cuda::CUDAGuard gpu(device_.index());
                const DeviceStream stream(device_);
                const StreamScope scope(stream);
                body();
              },
          .connect = [this](const Check& check) { Connect(check); },
          .enqueue = [this](const at::Tensor& tensor, const Check& check) { return Enqueue(tensor, check); },
          .finish = [this] { Finish(); }};
}

// The sender creates the id of the NCCL communicator.
void NcclChannel::Connect(const Check& check) {
  std::string id;
  if (send_) {
    id = handle_.NewId();
    store_.Set(key_, id);
  } else {
    std::optional<std::string> found;
    while (!(found = store_.Find(key_))) {
      check();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    id = *std::move(found);
  }
  handle_.Join(id, 2, send_ ? 0 : 1, device_.index(), check);
}

DeviceChannel::Transfer NcclChannel::Enqueue(const at::Tensor& tensor, const Check& check) {
  handle_.Call(
      [&](ncclComm_t comm) {
        const cudaStream_t current = c10::cuda::getCurrentCUDAStream(device_.index());
        const auto count = static_cast<size_t>(tensor.numel());
        return send_ ? ncclSend(tensor.data_ptr(), count, NcclTypeOf(tensor), 1, comm, current)
                     : ncclRecv(tensor.data_ptr(), count, NcclTypeOf(tensor), 0, comm, current);
      },
      check);
  const auto end = std::make_shared<const DeviceEvent>(device_);
  return {.over = [end] { return end->Over(); }, .block = [end] { end->Block(); }};
}

void NcclChannel::Finish() {
  try {
    const auto deadline = std::chrono::steady_clock::now() + kChannelFarewell;
    handle_.Finish([&] {
      if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("timeout");
    });
  } catch (const std::exception&) {
    // All messages are complete, so ignore the error. The destructor of the handle aborts
    // the NCCL communicator.
  }
}

}  // namespace scalelab::trainer
