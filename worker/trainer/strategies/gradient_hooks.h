// Reports when the gradient of a parameter is complete in a backward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// Hooks on the gradient accumulators of parameters. Autograd calls them, for parameters on the CPU on the
// thread that calls backward(). Exceptions that they throw leave backward().
class GradientHooks {
 public:
  GradientHooks() = default;
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  ~GradientHooks();

  // Makes autograd call `ready(i)` after it has written grad() of parameter i. Called once.
  void Attach(const std::vector<at::Tensor>& parameters, std::function<void(int)> ready);

  // Returns the parameters that the graph of `loss` does not reach; backward() gives them no gradient.
  std::vector<int> Unreached(const at::Tensor& loss) const;

 private:
  class Hook;
  // A shared_ptr in LibTorch 1.13, an intrusive_ptr in later versions.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  std::function<void(int)> ready_;
  std::vector<Accumulator> accumulators_;  // autograd holds only weak references
  std::vector<uintptr_t> keys_;
};

}  // namespace scalelab::trainer
