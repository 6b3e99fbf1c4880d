#include "worker/trainer/comm/nccl_communicator.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <exception>

#include "worker/trainer/comm/hierarchical_all_reduce.h"
#include "worker/trainer/comm/nccl_channel.h"
#include "worker/trainer/comm/nccl_handle.h"
#include "worker/trainer/comm/nccl_types.h"
#include "worker/trainer/comm/nccl_watchdog.h"
#include "worker/trainer/comm/peers/peer_watch.h"
#include "worker/trainer/comm/tensors.h"
#include "worker/trainer/device/device.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

constexpr std::chrono::seconds kFarewell{10};

// Returns the bitwise AND of the rows. Row r has the values of rank r.
at::Tensor BitAnd(const at::Tensor& of_ranks) {
  at::Tensor all = of_ranks[0].clone();
  for (int64_t r = 1; r < of_ranks.size(0); ++r) all.bitwise_and_(of_ranks[r]);
  return all;
}

}  // namespace

const NcclFunctions& Nccl() {
  static constexpr NcclFunctions kNccl{
      .new_id =
          [](std::string* id) {
            ncclUniqueId made;
            const int result = ncclGetUniqueId(&made);
            id->assign(made.internal, sizeof made.internal);
            return result;
          },
      .connect = [](ncclComm** comm, int size, const std::string& id, int rank, int gpu,
                    bool blocking) -> int {
        if (cudaSetDevice(gpu) != cudaSuccess) return ncclUnhandledCudaError;
        ncclUniqueId known;
        if (id.size() != sizeof known.internal) return ncclInvalidArgument;
        std::memcpy(known.internal, id.data(), id.size());
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = blocking ? 1 : 0;
        return ncclCommInitRankConfig(comm, size, known, rank, &config);
      },
      .async_error = [](ncclComm* comm, int* state) -> int {
        ncclResult_t result = ncclSuccess;
        const int answer = ncclCommGetAsyncError(comm, &result);
        *state = result;
        return answer;
      },
      .finalize = [](ncclComm* comm) -> int { return ncclCommFinalize(comm); },
      .destroy = [](ncclComm* comm) -> int { return ncclCommDestroy(comm); },
      .abort = [](ncclComm* comm) -> int { return ncclCommAbort(comm); },
      .error_text =
          [](int result, ncclComm* comm) {
            std::string text = ncclGetErrorString(static_cast<ncclResult_t>(result));
            const char* more = ncclGetLastError(comm);
            if (more != nullptr && *more != '\0') text += std::string(": ") + more;
            return text;
          },
  };
  static_assert(NcclFunctions::kSuccess == ncclSuccess && NcclFunctions::kInProgress == ncclInProgress);
  return kNccl;
}

struct NcclCommunicator::Transport {
  explicit Transport(at::Device device) : stream(c10::cuda::getStreamFromPool(true, device.index())) {}
  // Enqueues one NCCL operation on the stream.
  using Enqueue = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;
  void Call(const NcclWatchdog& watchdog, const Enqueue& enqueue) {
    handle.Call([&](ncclComm_t comm) { return enqueue(comm, stream); }, [&] { watchdog.ThrowIfFailed(); });
  }
  const c10::cuda::CUDAStream stream;
  NcclHandle handle{Nccl(), NcclHandle::Mode::kBlocking};
};

class NcclCommunicator::NcclWork : public Work {
 public:
  NcclWork(const NcclWatchdog& watchdog, std::shared_ptr<DeviceOperation> operation)
      : watchdog_(watchdog), operation_(std::move(operation)) {}
  void Wait() override {
    watchdog_.ThrowIfFailed();
    operation_->end.Block();
  }
  bool Done() override { return operation_->end.Over(); }
  Span span() const override { return SpanOf(*operation_); }
  void WaitOnHost() { watchdog_.Await(*operation_); }

 private:
  const NcclWatchdog& watchdog_;
  const std::shared_ptr<DeviceOperation> operation_;
};

NcclCommunicator::NcclCommunicator(int rank, int size, at::Device device, const RendezvousAddress& rendezvous,
                                   std::chrono::milliseconds timeout)
    : rank_(rank),
      size_(size),
      device_(device),
      timeout_(timeout),
      store_(OpenStore(rendezvous, rank, size, timeout)) {
  const c10::cuda::CUDAGuard gpu(device.index());
  Deadline deadline(timeout);
  int round = 0;
  const auto gather = [&](const std::string& mine) {
    return GatherThrough(*store_, "scalelab/" + std::to_string(round++) + "/", rank, size, mine, deadline);
  };
  watch_ = WatchPeers(rank, size, gather);
  CheckOneGpuEach(gather(DeviceIdentity(device)));
  Connect(gather, deadline);
}

NcclCommunicator::NcclCommunicator(NcclCommunicator& parent, const std::vector<int>& members)
    : rank_(static_cast<int>(PlaceIn(members, parent.rank_))),
      size_(static_cast<int>(members.size())),
      device_(parent.device_),
      timeout_(parent.timeout_),
      members_(members),
      store_(std::make_unique<PrefixedStore>(*parent.store_, "split/" + std::to_string(parent.splits_++) +
                                                                 "/" + std::to_string(members[0]) + "/")),
      watch_(parent.watch_) {
  const c10::cuda::CUDAGuard gpu(device_.index());
  if (!parent.members_.empty()) {
    for (int& member : members_) member = parent.members_[member];
  }
  Deadline deadline(timeout_);
  Connect(
      [&](const std::string& mine) {
        return GatherThrough(*store_, "scalelab/", rank_, size_, mine, deadline);
      },
      deadline);
}

std::unique_ptr<Communicator> NcclCommunicator::Split(int group) {
  return std::unique_ptr<Communicator>(new NcclCommunicator(*this, RanksOfGroup(*this, group)));
}

void NcclCommunicator::Connect(const Gather& gather, Deadline& deadline) {
  transport_ = std::make_unique<Transport>(device_);
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
  const auto select_gpu = [device = device_] { c10::cuda::set_device(device.index()); };
  watchdog_ = std::make_unique<NcclWatchdog>(*watch_, timeout_,
                                             NcclWatchdog::Hooks{select_gpu, trouble, abort}, members_);
  try {
    const std::string id = gather(rank_ == 0 ? transport_->handle.NewId() : "")[0];
    transport_->handle.Join(id, size_, rank_, device_.index(), [&] {
      watchdog_->ThrowIfFailed();
      if (deadline.Over()) {
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
    watch_->Leave();  // makes the other ranks name this rank as the cause when its connections close
  } else {
    try {
      watchdog_->Drain();
      const auto deadline = std::chrono::steady_clock::now() + kFarewell;
      transport_->handle.Finish([&] {
        if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("timeout");
      });
    } catch (const std::exception&) {
      // The failure has already been reported.
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

std::unique_ptr<Work> NcclCommunicator::Start(const char* what, const at::Tensor& output,
                                              const at::Tensor& input, const Enqueue& enqueue) {
  watchdog_->ThrowIfFailed();
  const at::NoGradGuard no_grad;
  DeviceEvent begin(device_);
  const c10::cuda::CUDAStreamGuard scope(transport_->stream);
  begin.Block();
  const bool from_host = !output.is_cuda() || !input.is_cuda();
  const at::Tensor out = output.is_cuda() ? output : output.to(device_);
  const at::Tensor in = input.is_same(output) ? out : input.is_cuda() ? input : input.to(device_);
  auto operation =
      std::make_shared<DeviceOperation>(what, std::move(begin), std::vector<at::Tensor>{out, in});
  try {
    watchdog_->Enqueuing(operation);
    enqueue(out, in);
    watchdog_->Enqueuing(nullptr);
  } catch (const TrainerError&) {
    throw;
  } catch (const std::exception& e) {
    watchdog_->Fail(std::string(what) + " failed (" + FirstLine(e.what()) + ")", -1);
  }
  operation->end = DeviceEvent(device_);
  // An operation that is being recorded does not run yet. Replay counts it later.
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

// Broadcasts each block, because NCCL has no such operation. NCCL executes the broadcasts of
// a group together.
std::unique_ptr<Work> NcclCommunicator::StartAllGatherV(const at::Tensor& output, const at::Tensor& input,
                                                        const std::vector<int64_t>& counts) {
  CheckUnequalBlocks(output, input, counts, *this);
  return Start("all-gather", output, input, [&](const at::Tensor& out, const at::Tensor& in) {
    transport_->Call(*watchdog_, [&](ncclComm_t comm, cudaStream_t stream) {
      ncclResult_t result = ncclGroupStart();
      char* place = static_cast<char*>(out.data_ptr());
      for (int r = 0; r < size_ && result == ncclSuccess; ++r) {
        const void* const from = r == rank_ ? in.data_ptr() : place;
        if (counts[r] > 0)
          result =
              ncclBroadcast(from, place, static_cast<size_t>(counts[r]), NcclTypeOf(out), r, comm, stream);
        place += counts[r] * out.element_size();
      }
      const ncclResult_t ended = ncclGroupEnd();
      return result == ncclSuccess ? ended : result;
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

int NcclCommunicator::ReceiveFromAny(const at::Tensor& tensor) {
  CheckReceiveFromAny(tensor, *this);
  throw TrainerError("backend nccl cannot receive from any rank: use backend mpi or gloo");
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
  StartAllReduce(nothing, ReduceOp::kSum);  // blocks until the end, because the tensor is in host memory
}

void NcclCommunicator::Replay(const std::function<void()>& replay) {
  watchdog_->ThrowIfFailed();
  auto operation =
      std::make_shared<DeviceOperation>("recorded step", DeviceEvent(device_), std::vector<at::Tensor>());
  replay();
  operation->end = DeviceEvent(device_);
  watchdog_->Add(std::move(operation));
}

std::string NcclVersion() {
  int version = 0;
  ncclGetVersion(&version);
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace scalelab::trainer
