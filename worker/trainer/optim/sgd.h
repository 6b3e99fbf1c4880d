// Stochastic gradient descent with momentum and an L2 penalty.
#pragma once

#include <functional>
#include <vector>

#include "worker/trainer/kernels/gpu_sgd.h"
#include "worker/trainer/named_tensors.h"

namespace scalelab::trainer {

// Computes v = momentum * v + grad + weight_decay * p;  p = p - rate * v  (v starts at 0), as torch.optim.SGD
// does. May change the gradients: the penalty is added to them in place.
class Sgd {
 public:
  // A function that executes a fused step. On a GPU it is GpuSgd. A test on a CPU passes a function with
  // the same arithmetic.
  using Kernel = void (*)(const GpuSgdTensor* tensors, int64_t count, const GpuSgdOptions& options,
                          GpuStream stream);

  // Returns whether this LibTorch supports fused steps.
  static bool HasFused();

  // Without `decay_norm`, parameters of less than two dimensions (normalization, biases) have no penalty.
  // With `fused`, one kernel updates many parameters, which is faster on a GPU. This kernel is `kernel`, or
  // GpuSgd if `kernel` is null and the parameters are on a GPU that supports it. LibTorch's fused kernel
  // updates the parameters that this kernel does not support, for example those that are not float32 or whose
  // gradients have other strides. `parameters` may be empty.
  Sgd(const std::vector<at::Tensor>& parameters, double momentum, double weight_decay, bool decay_norm,
      bool fused = false, Kernel kernel = nullptr);

  void Step(double rate) {
    SetRate(rate);
    Apply();
  }
  // Makes fused steps write copies of the new parameters, rounded to the type of the copy. copy_of(parameter)
  // returns an undefined tensor if the parameter has no copy. All copies have one type, float16 or bfloat16,
  // and the strides of their parameters.
  void WriteCopies(const std::function<at::Tensor(const at::Tensor&)>& copy_of);

  // The two halves of a step. The second may be recorded into a CUDA graph, because the rate of a fused step
  // is on the device. Apply skips parameters without a gradient, and skips the whole step if `left_out` (one
  // number on the device; fused only) is 1.
  void SetRate(double rate);
  void Apply(const at::Tensor& left_out = {});

  // Returns the tensors that steps change besides the parameters; writing into them restores a state. The
  // name of each ends in the position of its parameter among those that need a gradient.
  NamedTensors State() const;

 private:
  struct Group {
    std::vector<at::Tensor> parameters, velocities, copies;
    std::vector<int> positions;
    double weight_decay = 0;
  };
  // Executes the step of the parameters that the kernel supports.
  void StepByKernel(const at::Tensor& left_out) const;
  // Returns whether the kernel supports this parameter, which has a gradient.
  bool KernelSupports(const at::Tensor& parameter, const at::Tensor& velocity) const;
  void StepOne(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& velocity,
               double weight_decay) const;

  const double momentum_;
  const bool fused_;
  Kernel kernel_ = nullptr;  // the kernel of a fused step; null: LibTorch's kernel
  double rate_ = 0;
  at::Tensor device_rate_;  // the learning rate of a fused step
  GpuNumber copies_ = GpuNumber::kBFloat16;
  std::vector<Group> groups_;
};

}  // namespace scalelab::trainer
