// Reports when the gradient of a parameter is complete in a backward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// Hooks on the gradient accumulators of parameters. For parameters on the CPU, autograd calls the hooks on
// the thread that called backward(). backward() passes on their exceptions.
class GradientHooks {
 public:
  GradientHooks() = default;
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  ~GradientHooks();

  // Makes autograd call `ready(i)` after it has written grad() of parameter i. Must be called once.
  void Attach(const std::vector<at::Tensor>& parameters, std::function<void(int)> ready);

  // Returns the parameters that the graph of `loss` does not reach; backward() gives them no gradient.
  std::vector<int> Unreached(const at::Tensor& loss) const;

 private:
  class Hook;
  // The type is a shared_ptr in LibTorch 1.13, and an intrusive_ptr in later versions.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  std::function<void(int)> ready_;
  std::vector<Accumulator> accumulators_;  // keeps them alive, because autograd has only weak references
  std::vector<uintptr_t> keys_;
};

}  // namespace scalelab::trainer
