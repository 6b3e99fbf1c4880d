#include "worker/trainer/comm/nccl_communicator.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <sched.h>

#include <cstring>
#include <exception>

#include "worker/trainer/comm/nccl_channel.h"
#include "worker/trainer/comm/nccl_handle.h"
#include "worker/trainer/comm/nccl_types.h"
#include "worker/trainer/comm/nccl_watchdog.h"
#include "worker/trainer/comm/network.h"
#include "worker/trainer/comm/peer_watch.h"
#include "worker/trainer/comm/tensors.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

constexpr std::chrono::seconds kFarewell{10};

// Returns the host name and the UUID of a GPU.
std::string Describe(at::Device device) {
  cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
  std::string line = HostName() + " ";
  for (unsigned char byte : properties.uuid.bytes) {
    line += "0123456789abcdef"[byte >> 4];
    line += "0123456789abcdef"[byte & 15];
  }
  return line;
}

// Returns the bitwise AND of the ranks' values; row r is from rank r.
at::Tensor BitAnd(const at::Tensor& of_ranks) {
  at::Tensor all = of_ranks[0].clone();
  for (int64_t r = 1; r < of_ranks.size(0); ++r) all.bitwise_and_(of_ranks[r]);
  return all;
}

}  // namespace

struct NcclCommunicator::Transport {
  explicit Transport(at::Device device) : stream(c10::cuda::getStreamFromPool(true, device.index())) {}
  // Enqueues one NCCL operation on the stream.
  using Enqueue = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;
  void Call(const NcclWatchdog& watchdog, const Enqueue& enqueue) {
    handle.Call([&](ncclComm_t comm) { return enqueue(comm, stream); }, [&] { watchdog.ThrowIfFailed(); });
  }
  const c10::cuda::CUDAStream stream;
  NcclHandle handle;
};

class NcclCommunicator::NcclWork : public Work {
 public:
  NcclWork(const NcclWatchdog& watchdog, std::shared_ptr<DeviceOperation> operation)
      : watchdog_(watchdog), operation_(std::move(operation)) {}
  void Wait() override {
    watchdog_.ThrowIfFailed();
    operation_->end.Block();
  }
  Span span() const override { return SpanOf(operation_); }
  void WaitOnHost() {
    for (; !operation_->end.Over(); sched_yield()) watchdog_.ThrowIfFailed();
    watchdog_.ThrowIfFailed();  // an aborted operation counts as over
  }

 private:
  const NcclWatchdog& watchdog_;
  const std::shared_ptr<DeviceOperation> operation_;
};

NcclCommunicator::NcclCommunicator(int rank, int size, at::Device device, const Rendezvous& rendezvous,
                                   std::chrono::milliseconds timeout)
    : rank_(rank),
      size_(size),
      device_(device),
      timeout_(timeout),
      store_(OpenStore(rendezvous, rank, size, timeout)) {
  const c10::cuda::CUDAGuard gpu(device.index());
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  int round = 0;
  const auto gather = [&](const std::string& mine) {
    return GatherThrough(*store_, "scalelab/" + std::to_string(round++) + "/", rank, size, mine, deadline);
  };
  watch_ = WatchPeers(rank, size, gather);
  CheckOneGpuEach(gather(Describe(device)));

  transport_ = std::make_unique<Transport>(device);
  const auto trouble = [this] {
    std::string trouble = transport_->handle.AsyncError();
    std::lock_guard lock(mutex_);
    for (auto& [ends, channel] : channels_) trouble += channel->AsyncError();
    return trouble;
  };
  const auto abort = [this] {
    transport_->handle.Abort();
    std::lock_guard lock(mutex_);
    for (auto& [ends, channel] : channels_) channel->Abort();
  };
  watchdog_ = std::make_unique<NcclWatchdog>(*watch_, timeout, trouble, abort);
  try {
    ncclUniqueId id;
    const std::string mine = rank == 0 ? (id = NcclHandle::NewId(), std::string(id.internal, sizeof id)) : "";
    std::memcpy(id.internal, gather(mine)[0].data(), sizeof id);
    transport_->handle.Join(id, size, rank, [&] {
      watchdog_->ThrowIfFailed();
      if (std::chrono::steady_clock::now() > deadline) {
        watchdog_->Fail(LateSentence(Operation("joining over NCCL"), timeout_), -1);
      }
    });
  } catch (const TrainerError&) {
    throw;
  } catch (const std::exception& e) {
    watchdog_->Fail("joining over NCCL failed (" + FirstLine(e.what()) + ")", -1);
  }
}

NcclCommunicator::~NcclCommunicator() {
  if (std::uncaught_exceptions() > 0) {
    watch_->Leave();  // so that the other ranks blame this rank when its connections close
  } else {
    try {
      watchdog_->Drain();
      const auto deadline = std::chrono::steady_clock::now() + kFarewell;
      transport_->handle.Finish([&] {
        if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("timeout");
      });
    } catch (const std::exception&) {
      // The failure was reported when it happened.
    }
  }
  transport_->handle.Abort();  // does nothing after Finish
  decltype(channels_) channels;
  {
    std::lock_guard lock(mutex_);
    channels.swap(channels_);
  }
  if (std::uncaught_exceptions() > 0) {
    for (auto& [ends, channel] : channels) channel->Abort();
  }
}

void NcclCommunicator::CheckOneGpuEach(std::span<const std::string> gpus) const {
  for (int r = 0; r < size_; ++r) {
    for (int other = r + 1; other < size_; ++other) {
      if (gpus[r] != gpus[other]) continue;
      throw TrainerError(
          "ranks " + std::to_string(r) + " and " + std::to_string(other) + " on " +
              gpus[r].substr(0, gpus[r].find(' ')) +
              " would share one GPU, and backend \"nccl\" needs one for each rank: start fewer "
              "ranks on a node, check that each rank has its own LOCAL_RANK, or use backend mpi or "
              "gloo",
          ErrorKind::kCommunication);
    }
  }
}

std::unique_ptr<Work> NcclCommunicator::Start(const char* what, const at::Tensor& output,
                                              const at::Tensor& input, const Enqueue& enqueue) {
  watchdog_->ThrowIfFailed();
  const at::NoGradGuard no_grad;
  Moment begin(device_);
  const c10::cuda::CUDAStreamGuard scope(transport_->stream);
  begin.Block();
  const bool from_host = !output.is_cuda() || !input.is_cuda();
  const at::Tensor out = output.is_cuda() ? output : output.to(device_);
  const at::Tensor in = input.is_same(output) ? out : input.is_cuda() ? input : input.to(device_);
  auto operation =
      std::make_shared<DeviceOperation>(what, std::move(begin), std::vector<at::Tensor>{out, in});
  try {
    enqueue(out, in);
  } catch (const TrainerError&) {
    throw;
  } catch (const std::exception& e) {
    watchdog_->Fail(std::string(what) + " failed (" + FirstLine(e.what()) + ")", -1);
  }
  operation->end = Moment(device_);
  // A recorded operation does not run yet. Replay counts it.
  const bool recording = c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  if (!recording) watchdog_->Add(operation);
  auto work = std::make_unique<NcclWork>(*watchdog_, std::move(operation));
  if (from_host) {
    work->WaitOnHost();
    if (!output.is_cuda()) at::Tensor(output).copy_(out);
  }
  return work;
}

std::unique_ptr<Work> NcclCommunicator::StartAllReduce(const at::Tensor& tensor, ReduceOp op) {
  CheckReduction(tensor, op);
  return Start("all-reduce", tensor, tensor, [&](const at::Tensor& t, const at::Tensor&) {
    const auto count = static_cast<size_t>(t.numel());
    if (op == ReduceOp::kBitAnd) {
      const at::Tensor flat = t.as_strided({t.numel()}, {1});
      const at::Tensor all = at::empty({size_, t.numel()}, t.options());
      transport_->Call(*watchdog_, [&](ncclComm_t comm, cudaStream_t stream) {
        return ncclAllGather(flat.data_ptr(), all.data_ptr(), count, NcclTypeOf(t), comm, stream);
      });
      flat.copy_(BitAnd(all));
      return;
    }
    transport_->Call(*watchdog_, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(t.data_ptr(), t.data_ptr(), count, NcclTypeOf(t), NcclOpOf(op), comm, stream);
    });
  });
}

std::unique_ptr<Work> NcclCommunicator::StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                                           ReduceOp op) {
  CheckReduction(input, op);
  CheckBlocks(input, output, size_);
  return Start("reduce-scatter", output, input, [&](const at::Tensor& out, const at::Tensor& in) {
    if (op == ReduceOp::kBitAnd) {
      const at::Tensor all = at::empty({size_, size_, out.numel()}, in.options());
      transport_->Call(*watchdog_, [&](ncclComm_t comm, cudaStream_t stream) {
        return ncclAllGather(in.data_ptr(), all.data_ptr(), static_cast<size_t>(in.numel()), NcclTypeOf(in),
                             comm, stream);
      });
      out.as_strided({out.numel()}, {1}).copy_(BitAnd(all.select(1, rank_)));
      return;
    }
    transport_->Call(*watchdog_, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclReduceScatter(in.data_ptr(), out.data_ptr(), static_cast<size_t>(out.numel()),
                               NcclTypeOf(in), NcclOpOf(op), comm, stream);
    });
  });
}

std::unique_ptr<Work> NcclCommunicator::StartAllGather(const at::Tensor& output, const at::Tensor& input) {
  CheckBlocks(output, input, size_);
  return Start("all-gather", output, input, [&](const at::Tensor& out, const at::Tensor& in) {
    transport_->Call(*watchdog_, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllGather(in.data_ptr(), out.data_ptr(), static_cast<size_t>(in.numel()), NcclTypeOf(in),
                           comm, stream);
    });
  });
}

void NcclCommunicator::Broadcast(const at::Tensor& tensor, int root) {
  CheckTensor(tensor);
  Start("broadcast", tensor, tensor, [&](const at::Tensor& t, const at::Tensor&) {
    transport_->Call(*watchdog_, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclBroadcast(t.data_ptr(), t.data_ptr(), static_cast<size_t>(t.numel()), NcclTypeOf(t), root,
                           comm, stream);
    });
  })->Wait();
}

NcclChannel& NcclCommunicator::ChannelOf(int from, int to) {
  std::lock_guard lock(mutex_);
  std::unique_ptr<NcclChannel>& channel = channels_[{from, to}];
  if (!channel) {
    channel = std::make_unique<NcclChannel>(*store_, *watchdog_, device_, rank_, from, to, timeout_);
  }
  return *channel;
}

std::unique_ptr<Work> NcclCommunicator::StartSend(const at::Tensor& tensor, int to) {
  CheckTensor(tensor);
  CheckPeer(to, *this);
  return ChannelOf(rank_, to).Start(tensor);
}

std::unique_ptr<Work> NcclCommunicator::StartReceive(const at::Tensor& tensor, int from) {
  CheckTensor(tensor);
  CheckPeer(from, *this);
  return ChannelOf(from, rank_).Start(tensor);
}

std::vector<std::string> NcclCommunicator::AllGather(std::string_view mine) {
  const auto length = static_cast<int64_t>(mine.size());
  const at::Tensor input = at::empty({length}, at::kByte), output = at::empty({size_ * length}, at::kByte);
  std::memcpy(input.data_ptr(), mine.data(), mine.size());
  Start("all-gather", output, input, [&](const at::Tensor& out, const at::Tensor& in) {
    transport_->Call(*watchdog_, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllGather(in.data_ptr(), out.data_ptr(), mine.size(), ncclUint8, comm, stream);
    });
  });
  const char* bytes = static_cast<const char*>(output.data_ptr());
  std::vector<std::string> result;
  for (int r = 0; r < size_; ++r) result.emplace_back(bytes + r * mine.size(), mine.size());
  return result;
}

void NcclCommunicator::Barrier() {
  const at::Tensor nothing = at::zeros({1}, at::kLong);
  StartAllReduce(nothing, ReduceOp::kSum);  // has ended on return, because the tensor is in host memory
}

void NcclCommunicator::Replay(const std::function<void()>& replay) {
  watchdog_->ThrowIfFailed();
  auto operation =
      std::make_shared<DeviceOperation>("recorded step", Moment(device_), std::vector<at::Tensor>());
  replay();
  operation->end = Moment(device_);
  watchdog_->Add(std::move(operation));
}

}  // namespace scalelab::trainer
