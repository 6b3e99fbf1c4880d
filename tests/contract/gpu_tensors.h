// Wraps a communicator so that the contract's tensors are copied to a GPU and back. A copy has the strides of its tensor.
#pragma once

#include <memory>
#include <utility>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

class GpuTensors : public Communicator {
 public:
  GpuTensors(std::unique_ptr<Communicator> tested, at::Device gpu) : tested_(std::move(tested)), gpu_(gpu) {}

  int rank() const override { return tested_->rank(); }
  int size() const override { return tested_->size(); }
  std::string_view name() const override { return tested_->name(); }
  std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) override {
    const at::Tensor there = There(tensor);
    return std::make_unique<Back>(tested_->StartAllReduce(there, op), tensor, there);
  }
  std::unique_ptr<Work> StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                           ReduceOp op) override {
    const at::Tensor there = There(output), from = There(input);
    auto work = std::make_unique<Back>(tested_->StartReduceScatter(there, from, op), output, there);
    work->kept = from;
    return work;
  }
  std::unique_ptr<Work> StartAllGather(const at::Tensor& output, const at::Tensor& input) override {
    const at::Tensor there = There(output), from = InputOf(there, output, input);
    auto work = std::make_unique<Back>(tested_->StartAllGather(there, from), output, there);
    work->kept = from;
    return work;
  }
  std::unique_ptr<Work> StartAllGatherV(const at::Tensor& output, const at::Tensor& input,
                                        const std::vector<int64_t>& counts) override {
    const at::Tensor there = There(output), from = InputOf(there, output, input);
    auto work = std::make_unique<Back>(tested_->StartAllGatherV(there, from, counts), output, there);
    work->kept = from;
    return work;
  }
  void Broadcast(const at::Tensor& tensor, int root) override {
    const at::Tensor there = There(tensor);
    tested_->Broadcast(there, root);
    at::Tensor(tensor).copy_(there);
  }
  std::unique_ptr<Work> StartSend(const at::Tensor& tensor, int to) override {
    const at::Tensor there = There(tensor);
    return std::make_unique<Back>(tested_->StartSend(there, to), tensor, there);
  }
  std::unique_ptr<Work> StartReceive(const at::Tensor& tensor, int from) override {
    const at::Tensor there = There(tensor);
    return std::make_unique<Back>(tested_->StartReceive(there, from), tensor, there);
  }
  std::unique_ptr<Communicator> Split(int group) override {
    return std::make_unique<GpuTensors>(tested_->Split(group), gpu_);
  }
  int ReceiveFromAny(const at::Tensor& tensor) override {
    const at::Tensor there = There(tensor);
    const int from = tested_->ReceiveFromAny(there);
    tensor.copy_(there);
    return from;
  }
  std::vector<std::string> AllGather(std::string_view mine) override { return tested_->AllGather(mine); }
  void Barrier() override { tested_->Barrier(); }

 private:
  at::Tensor There(const at::Tensor& here) const {
    return at::empty_strided(here.sizes(), here.strides(), here.options().device(gpu_)).copy_(here);
  }

  // Returns the input on the GPU: the same part of `there` as of `output`, or a copy.
  at::Tensor InputOf(const at::Tensor& there, const at::Tensor& output, const at::Tensor& input) const {
    const auto offset = static_cast<const char*>(input.data_ptr()) - static_cast<char*>(output.data_ptr());
    const bool inside = offset >= 0 && offset < static_cast<int64_t>(output.nbytes());
    return inside ? there.view(-1).narrow(0, offset / output.element_size(), input.numel()) : There(input);
  }

  class Back : public Work {
   public:
    Back(std::unique_ptr<Work> work, at::Tensor here, at::Tensor there)
        : work_(std::move(work)), here_(std::move(here)), there_(std::move(there)) {}
    ~Back() override { Back::Wait(); }
    void Wait() override {
      if (waited_) return;
      waited_ = true;
      work_->Wait();
      here_.copy_(there_);
    }
    bool Done() override { return waited_ || work_->Done(); }
    Span span() const override { return work_->span(); }
    at::Tensor kept;

   private:
    const std::unique_ptr<Work> work_;
    at::Tensor here_, there_;
    bool waited_ = false;
  };

  const std::unique_ptr<Communicator> tested_;
  const at::Device gpu_;
};

}  // namespace scalelab::trainer
