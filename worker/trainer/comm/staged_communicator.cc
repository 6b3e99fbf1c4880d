#include "worker/trainer/comm/staged_communicator.h"

#include <exception>

#include "worker/trainer/comm/tensors.h"

namespace scalelab::trainer {

struct StagedCommunicator::Transfer {
  at::Tensor output;       // receives the result; undefined for a send
  at::Tensor host_output;  // the tensor in host memory
  DeviceEvent arrived;
  std::function<std::unique_ptr<Work>()> start;
  std::unique_ptr<Work> work;  // set when started
};

class StagedCommunicator::StagedWork : public Work {
 public:
  StagedWork(StagedCommunicator& owner, std::shared_ptr<Transfer> transfer)
      : owner_(owner), transfer_(std::move(transfer)) {}
  void Wait() override {
    if (const auto transfer = std::move(transfer_)) {
      owner_.Finish(*transfer);
      span_ = transfer->work->span();
    }
  }
  bool Done() override {
    owner_.StartArrived(/*all=*/false);
    return !transfer_ || (transfer_->work && transfer_->work->Done());
  }
  // Returns the time on the host's clock, without the copies.
  Span span() const override { return span_; }
  // Copies the result to the tensor even if Wait was never called.
  ~StagedWork() override {
    try {
      if (std::uncaught_exceptions() == 0) Wait();
    } catch (const std::exception&) {
      // The next operation fails with the same error.
    }
  }

 private:
  StagedCommunicator& owner_;
  std::shared_ptr<Transfer> transfer_;
  Span span_;
};

StagedCommunicator::StagedCommunicator(std::unique_ptr<Communicator> host, at::Device device)
    : host_(std::move(host)), device_(device), stream_(device) {}

StagedCommunicator::~StagedCommunicator() = default;

at::Tensor StagedCommunicator::HostLike(const at::Tensor& tensor) const {
  return at::empty_like(tensor, tensor.options().device(at::kCPU).pinned_memory(device_.is_cuda()));
}

at::Tensor StagedCommunicator::Fetch(const at::Tensor& tensor, DeviceEvent& arrived) {
  const at::NoGradGuard no_grad;
  const at::Tensor host = HostLike(tensor);
  const DeviceEvent ready(device_);
  const StreamScope scope(stream_);
  ready.Block();
  host.copy_(tensor, /*non_blocking=*/true);
  arrived = DeviceEvent(device_);
  return host;
}

std::unique_ptr<Work> StagedCommunicator::Enqueue(std::shared_ptr<Transfer> transfer) {
  waiting_.push_back(transfer);
  StartArrived(/*all=*/false);
  return std::make_unique<StagedWork>(*this, std::move(transfer));
}

void StagedCommunicator::StartArrived(bool all) {
  while (!waiting_.empty()) {
    Transfer& first = *waiting_.front();
    if (!all && !first.arrived.Over()) return;
    first.arrived.Wait();
    first.work = first.start();
    waiting_.pop_front();
  }
}

void StagedCommunicator::Finish(Transfer& transfer) {
  while (!transfer.work) {
    waiting_.front()->arrived.Wait();
    StartArrived(/*all=*/false);
  }
  transfer.work->Wait();
  StartArrived(/*all=*/false);
  const at::NoGradGuard no_grad;
  if (transfer.output.defined()) transfer.output.copy_(transfer.host_output, /*non_blocking=*/true);
}

std::unique_ptr<Work> StagedCommunicator::StartAllReduce(const at::Tensor& tensor, ReduceOp op) {
  CheckReduction(tensor, op);
  if (!Staged(tensor)) {
    StartArrived(/*all=*/true);
    return host_->StartAllReduce(tensor, op);
  }
  auto transfer = std::make_shared<Transfer>();
  transfer->output = tensor;
  const at::Tensor host = transfer->host_output = Fetch(tensor, transfer->arrived);
  transfer->start = [this, host, op] { return host_->StartAllReduce(host, op); };
  return Enqueue(std::move(transfer));
}

std::unique_ptr<Work> StagedCommunicator::StartReduceScatter(const at::Tensor& output,
                                                             const at::Tensor& input, ReduceOp op) {
  CheckReduction(input, op);
  CheckBlocks(input, output, size());
  if (!Staged(input)) {
    StartArrived(/*all=*/true);
    return host_->StartReduceScatter(output, input, op);
  }
  auto transfer = std::make_shared<Transfer>();
  transfer->output = output;
  const at::Tensor to = transfer->host_output = HostLike(output);
  transfer->start = [this, to, from = Fetch(input, transfer->arrived), op] {
    return host_->StartReduceScatter(to, from, op);
  };
  return Enqueue(std::move(transfer));
}

std::unique_ptr<Work> StagedCommunicator::StartAllGather(const at::Tensor& output, const at::Tensor& input) {
  CheckBlocks(output, input, size());
  if (!Staged(input)) {
    StartArrived(/*all=*/true);
    return host_->StartAllGather(output, input);
  }
  auto transfer = std::make_shared<Transfer>();
  transfer->output = output;
  const at::Tensor to = transfer->host_output = HostLike(output);
  transfer->start = [this, to, from = Fetch(input, transfer->arrived)] {
    return host_->StartAllGather(to, from);
  };
  return Enqueue(std::move(transfer));
}

std::unique_ptr<Work> StagedCommunicator::StartAllGatherV(const at::Tensor& output, const at::Tensor& input,
                                                          const std::vector<int64_t>& counts) {
  CheckUnequalBlocks(output, input, counts, *this);
  if (!Staged(input)) {
    StartArrived(/*all=*/true);
    return host_->StartAllGatherV(output, input, counts);
  }
  auto transfer = std::make_shared<Transfer>();
  transfer->output = output;
  const at::Tensor to = transfer->host_output = HostLike(output);
  transfer->start = [this, to, from = Fetch(input, transfer->arrived), counts] {
    return host_->StartAllGatherV(to, from, counts);
  };
  return Enqueue(std::move(transfer));
}

void StagedCommunicator::Broadcast(const at::Tensor& tensor, int root) {
  CheckTensor(tensor);
  StartArrived(/*all=*/true);
  if (!Staged(tensor)) return host_->Broadcast(tensor, root);
  DeviceEvent arrived;
  const at::Tensor host = Fetch(tensor, arrived);
  arrived.Wait();
  host_->Broadcast(host, root);
  const at::NoGradGuard no_grad;
  tensor.copy_(host, /*non_blocking=*/true);
}

std::unique_ptr<Work> StagedCommunicator::StartSend(const at::Tensor& tensor, int to) {
  CheckTensor(tensor);
  CheckPeer(to, *this);
  if (!Staged(tensor)) return host_->StartSend(tensor, to);
  auto transfer = std::make_shared<Transfer>();
  const at::Tensor host = transfer->host_output = Fetch(tensor, transfer->arrived);
  transfer->arrived.Wait();  // start at once, because sends are not ordered with collective operations
  transfer->work = host_->StartSend(host, to);
  return std::make_unique<StagedWork>(*this, std::move(transfer));
}

std::unique_ptr<Work> StagedCommunicator::StartReceive(const at::Tensor& tensor, int from) {
  CheckTensor(tensor);
  CheckPeer(from, *this);
  if (!Staged(tensor)) return host_->StartReceive(tensor, from);
  auto transfer = std::make_shared<Transfer>();
  transfer->output = tensor;
  transfer->host_output = HostLike(tensor);
  transfer->work = host_->StartReceive(transfer->host_output, from);
  return std::make_unique<StagedWork>(*this, std::move(transfer));
}

std::unique_ptr<Communicator> StagedCommunicator::Split(int group) {
  StartArrived(/*all=*/true);
  return std::make_unique<StagedCommunicator>(host_->Split(group), device_);
}

int StagedCommunicator::ReceiveFromAny(const at::Tensor& tensor) {
  CheckTensor(tensor);
  if (!Staged(tensor)) return host_->ReceiveFromAny(tensor);
  const at::Tensor host = HostLike(tensor);
  const int from = host_->ReceiveFromAny(host);
  const at::NoGradGuard no_grad;
  tensor.copy_(host, /*non_blocking=*/true);
  return from;
}

std::vector<std::string> StagedCommunicator::AllGather(std::string_view mine) {
  StartArrived(/*all=*/true);
  return host_->AllGather(mine);
}

void StagedCommunicator::Barrier() {
  StartArrived(/*all=*/true);
  host_->Barrier();
}

}  // namespace scalelab::trainer
