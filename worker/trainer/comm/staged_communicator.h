// Tensors of a GPU over a communicator that knows host memory only.
#pragma once

#include <deque>
#include <functional>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/device/moment.h"

namespace scalelab::trainer {

// Each tensor travels through pinned host memory: down on a stream of its own while the GPU computes, back on
// the waiting thread's current stream. Operations start in the order of the calls, each when its tensor has
// arrived on the host; nobody but the caller looks for that, so they start late while the caller is
// elsewhere, as it is when the GPU still has much to do. Tensors in host memory are handed on.
class StagedCommunicator : public Communicator {
 public:
  // `device` is where the tensors lie.
  StagedCommunicator(std::unique_ptr<Communicator> host, at::Device device);
  ~StagedCommunicator() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string_view name() const override { return host_->name(); }
  std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) override;
  std::unique_ptr<Work> StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                           ReduceOp op) override;
  std::unique_ptr<Work> StartAllGather(const at::Tensor& output, const at::Tensor& input) override;
  void Broadcast(const at::Tensor& tensor, int root) override;
  std::unique_ptr<Work> StartSend(const at::Tensor& tensor, int to) override;
  std::unique_ptr<Work> StartReceive(const at::Tensor& tensor, int from) override;
  std::vector<std::string> AllGather(std::string_view mine) override;
  void Barrier() override;

 private:
  struct Transfer;
  class StagedWork;

  bool Staged(const at::Tensor& tensor) const { return tensor.device() == device_; }
  at::Tensor HostLike(const at::Tensor& tensor) const;
  // On its way to the host; `arrived` is when it is there.
  at::Tensor Fetch(const at::Tensor& tensor, Moment& arrived);
  std::unique_ptr<Work> Enqueue(std::shared_ptr<Transfer> transfer);
  // Starts those at the head that have arrived; with `all`, waits for the others and starts them too.
  void StartArrived(bool all);
  void Finish(Transfer& transfer);

  const std::unique_ptr<Communicator> host_;
  const at::Device device_;
  const DeviceStream stream_;
  std::deque<std::shared_ptr<Transfer>> waiting_;  // collective operations, not started
};

}  // namespace scalelab::trainer
