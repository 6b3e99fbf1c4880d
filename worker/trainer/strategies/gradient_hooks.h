// Tells when the gradient of a parameter is complete in a backward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// Hooks behind the gradient accumulators of parameters. They are called by autograd, on the thread that calls
// backward() when the parameters lie on the CPU; what they throw comes out of backward().
class GradientHooks {
 public:
  GradientHooks() = default;
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  ~GradientHooks();

  // Calls `ready(i)` after grad() of parameter i has been written. Once.
  void Attach(const std::vector<at::Tensor>& parameters, std::function<void(int)> ready);

  // Parameters that backward() of `loss` will give no gradient: those its graph does not reach.
  std::vector<int> Unreached(const at::Tensor& loss) const;

 private:
  class Hook;
  // A shared_ptr in LibTorch 1.13, an intrusive_ptr in later ones.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  std::function<void(int)> ready_;
  std::vector<Accumulator> accumulators_;  // autograd itself holds them weakly
  std::vector<uintptr_t> keys_;
};

}  // namespace scalelab::trainer
