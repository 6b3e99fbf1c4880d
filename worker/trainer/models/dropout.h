// Dropout whose random numbers on a CPU may come from a generator of the calling thread.
#pragma once

#include <torch/nn/module.h>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// Returns at::dropout(x, p, training). On a CPU, within a DropoutScope, the random numbers come from the
// generator of the scope. Otherwise they come from the default generator of the device. `p` must be less than 1.
at::Tensor ApplyDropout(const at::Tensor& x, double p, bool training);

// Dropout as a layer of torch::nn::Sequential.
class DropoutLayer : public torch::nn::Module {
 public:
  explicit DropoutLayer(double p) : p_(p) {}
  at::Tensor forward(const at::Tensor& x) { return ApplyDropout(x, p_, is_training()); }

 private:
  const double p_;
};

// Sets the generator that ApplyDropout uses in the calling thread during the lifetime of this object. If
// `generator` is null, ApplyDropout uses the default one. `generator` must outlive the object.
class DropoutScope {
 public:
  explicit DropoutScope(const at::Generator* generator);
  ~DropoutScope();
  DropoutScope(const DropoutScope&) = delete;
  DropoutScope& operator=(const DropoutScope&) = delete;

 private:
  const at::Generator* const before_;
};

}  // namespace scalelab::trainer
