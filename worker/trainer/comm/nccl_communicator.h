// Ranks joined by NCCL, a GPU each.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/comm/rendezvous.h"

namespace scalelab::trainer {

class DeviceOperation;
class NcclChannel;
class NcclWatchdog;
class PeerWatch;

// Collective operations run on a stream of their own, each behind what the caller's current stream had been
// given before, and in front of what it is given after Wait, which does not hold up the host. Tensors in host
// memory are few and small in training: they travel through the GPU, and the call returns when that is over.
class NcclCommunicator : public Communicator {
 public:
  // `device` is this rank's GPU. Returns when all ranks have come; throws TrainerError that names those who
  // have not within `timeout`, which is each operation's time limit too, and when two ranks have one GPU.
  NcclCommunicator(int rank, int size, at::Device device, const Rendezvous& rendezvous,
                   std::chrono::milliseconds timeout);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "nccl"; }
  std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) override;
  std::unique_ptr<Work> StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                           ReduceOp op) override;
  std::unique_ptr<Work> StartAllGather(const at::Tensor& output, const at::Tensor& input) override;
  void Broadcast(const at::Tensor& tensor, int root) override;
  std::unique_ptr<Work> StartSend(const at::Tensor& tensor, int to) override;
  std::unique_ptr<Work> StartReceive(const at::Tensor& tensor, int from) override;
  std::vector<std::string> AllGather(std::string_view mine) override;
  void Barrier() override;
  bool CanBeRecorded() const override { return true; }
  void Replay(const std::function<void()>& replay) override;

 private:
  class NcclWork;
  struct Transport;  // NCCL's own types, kept out of this header

  // Puts an operation onto the stream. `enqueue` gets output and input as they lie on the GPU; they may be
  // the same tensor.
  using Enqueue = std::function<void(const at::Tensor& output, const at::Tensor& input)>;
  std::unique_ptr<Work> Start(const char* what, const at::Tensor& output, const at::Tensor& input,
                              const Enqueue& enqueue);
  void CheckOneGpuEach(std::span<const std::string> gpus) const;
  NcclChannel& ChannelOf(int from, int to);

  const int rank_, size_;
  const at::Device device_;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<KeyStore> store_;
  std::unique_ptr<PeerWatch> watch_;
  std::unique_ptr<Transport> transport_;
  std::mutex mutex_;                                                      // guards channels_
  std::map<std::pair<int, int>, std::unique_ptr<NcclChannel>> channels_;  // by sender and receiver
  std::unique_ptr<NcclWatchdog> watchdog_;
};

}  // namespace scalelab::trainer
