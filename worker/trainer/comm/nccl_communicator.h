// A communicator over NCCL. Each rank has one GPU.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/comm/peers/rendezvous.h"

namespace scalelab::trainer {

class DeviceOperation;
class NcclChannel;
class NcclWatchdog;
class PeerWatch;

// Collective operations run on a separate stream. Each operation starts after the work that is on the
// caller's current stream when the operation is started. Work that is enqueued on the current stream after
// Wait runs after the operation. Wait does not block the host. Tensors in host memory, which are few and
// small in training, are copied through the GPU, and the call returns when the operation has ended.
class NcclCommunicator : public Communicator {
 public:
  // Connects all ranks. `device` is this rank's GPU. `timeout` limits the connection, and later each
  // operation. If ranks are missing or two ranks share a GPU, throws a TrainerError that names them.
  NcclCommunicator(int rank, int size, at::Device device, const RendezvousAddress& rendezvous,
                   std::chrono::milliseconds timeout);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "nccl"; }
  std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) override;
  std::unique_ptr<Work> StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                           ReduceOp op) override;
  std::unique_ptr<Work> StartAllGather(const at::Tensor& output, const at::Tensor& input) override;
  std::unique_ptr<Work> StartAllGatherV(const at::Tensor& output, const at::Tensor& input,
                                        const std::vector<int64_t>& counts) override;
  void Broadcast(const at::Tensor& tensor, int root) override;
  std::unique_ptr<Work> StartSend(const at::Tensor& tensor, int to) override;
  std::unique_ptr<Work> StartReceive(const at::Tensor& tensor, int from) override;
  std::unique_ptr<Communicator> Split(int group) override;
  // Always throws, because a receive of NCCL needs a sender.
  int ReceiveFromAny(const at::Tensor& tensor) override;
  std::vector<std::string> AllGather(std::string_view mine) override;
  void Barrier() override;
  bool CanBeRecorded() const override { return true; }
  void Replay(const std::function<void()>& replay) override;

 private:
  class NcclWork;
  struct Transport;  // contains NCCL's types, so that this header does not include NCCL's headers

  // Makes the communicator of a group, whose ranks are `members` of `parent`.
  NcclCommunicator(NcclCommunicator& parent, const std::vector<int>& members);

  // Starts the watchdog and connects the ranks that call `gather`. Fails at `deadline`.
  using Gather = std::function<std::vector<std::string>(const std::string& mine)>;
  void Connect(const Gather& gather, Deadline& deadline);
  // Enqueues an operation on the stream. `enqueue` gets the output and the input in GPU memory. The two may
  // be the same tensor.
  using Enqueue = std::function<void(const at::Tensor& output, const at::Tensor& input)>;
  std::unique_ptr<Work> Start(const char* what, const at::Tensor& output, const at::Tensor& input,
                              const Enqueue& enqueue);
  NcclChannel& ChannelOf(int from, int to);

  const int rank_, size_;
  const at::Device device_;
  const std::chrono::milliseconds timeout_;
  std::vector<int> members_;  // for a group: its ranks in the run; empty: all ranks
  int splits_ = 0;            // number of calls of Split
  std::unique_ptr<KeyStore> store_;
  std::shared_ptr<PeerWatch> watch_;  // the watch of the run
  std::unique_ptr<Transport> transport_;
  std::mutex mutex_;  // guards channels_
  // The channels by sender and receiver.
  std::map<std::pair<int, int>, std::unique_ptr<NcclChannel>> channels_;
  std::unique_ptr<NcclWatchdog> watchdog_;
};

std::string NcclVersion();  // such as "2.28.9"

}  // namespace scalelab::trainer
