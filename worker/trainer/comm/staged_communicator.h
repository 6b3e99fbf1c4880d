// A communicator for GPU tensors, over a communicator that accepts only host memory.
#pragma once

#include <deque>
#include <functional>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/device/device_event.h"

namespace scalelab::trainer {

// Copies each tensor to pinned host memory on a separate stream, while the GPU computes. Copies the
// result back on the waiting thread's current stream. Operations start in the order of the calls, each
// after its tensor has arrived on the host. Only calls of this object check for arrival, so operations
// may start late while the calling thread does other work. Tensors in host memory are passed to the
// other communicator directly.
class StagedCommunicator : public Communicator {
 public:
  // `device` is the device of the tensors that must be copied.
  StagedCommunicator(std::unique_ptr<Communicator> host, at::Device device);
  ~StagedCommunicator() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string_view name() const override { return host_->name(); }
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
  int ReceiveFromAny(const at::Tensor& tensor) override;
  std::vector<std::string> AllGather(std::string_view mine) override;
  void Barrier() override;

 private:
  struct Transfer;
  class StagedWork;

  bool Staged(const at::Tensor& tensor) const { return tensor.device() == device_; }
  at::Tensor HostLike(const at::Tensor& tensor) const;
  // Starts the copy to the host; `arrived` is the event of its end.
  at::Tensor Fetch(const at::Tensor& tensor, DeviceEvent& arrived);
  std::unique_ptr<Work> Enqueue(std::shared_ptr<Transfer> transfer);
  // Starts the pending operations whose tensors have arrived, in order. With `all`, waits for the other
  // tensors and starts their operations too.
  void StartArrived(bool all);
  void Finish(Transfer& transfer);

  const std::unique_ptr<Communicator> host_;
  const at::Device device_;
  const DeviceStream stream_;
  std::deque<std::shared_ptr<Transfer>> waiting_;  // pending collective operations
};

}  // namespace scalelab::trainer
