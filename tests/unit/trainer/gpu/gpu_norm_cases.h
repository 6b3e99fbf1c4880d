// Batch normalizations for the tests of the kernels for GPUs.
#pragma once

#include <vector>

#include "worker/trainer/models/gpu_norm.h"

namespace scalelab::trainer {

struct NormCase {
  at::ScalarType type = at::kFloat;
  bool batch_statistics = true, relu = true, residual = true;
  // The shapes: one tile of channels whose number is not a power of two; one tile of few channels with
  // several parts of the rows; several tiles.
  std::vector<int64_t> shape = {5, 24, 7, 9};
};

inline const std::vector<std::vector<int64_t>> kNormShapes = {{5, 24, 7, 9}, {9, 8, 32, 32}, {2, 264, 3, 5}};

// The inputs of a case: values with a mean of 10 and a deviation of 3.
struct NormInputs {
  NormState state;
  at::Tensor x, residual, dy;
};

inline NormInputs MakeNormInputs(const NormCase& norm) {
  at::manual_seed(2);
  const int64_t channels = norm.shape[1];
  const auto values = [&](double mean, double deviation) {
    return (at::randn(norm.shape) * deviation + mean)
        .to(norm.type)
        .contiguous(at::MemoryFormat::ChannelsLast);
  };
  NormInputs inputs;
  inputs.state.weight = at::rand({channels}) + 0.5;
  inputs.state.bias = at::randn({channels});
  inputs.state.running_mean = at::randn({channels}) + 10;
  inputs.state.running_var = at::rand({channels}) * 9 + 0.5;
  inputs.x = values(10, 3);
  if (norm.residual) inputs.residual = values(0, 1);
  inputs.dy = values(0, 1);
  return inputs;
}

// Results on the CPU: y, both running statistics, and the gradients of x, weight, bias and residual.
using NormResults = std::vector<at::Tensor>;

// Runs forward and backward of `function(x, residual, state)` on a device.
template <typename Function>
NormResults RunNorm(const NormInputs& inputs, at::Device device, const Function& function) {
  const auto make_leaf = [&](const at::Tensor& t) {
    return t.to(device, t.scalar_type(), false, true).set_requires_grad(true);
  };
  NormState state = inputs.state;
  state.weight = make_leaf(state.weight), state.bias = make_leaf(state.bias);
  state.running_mean = state.running_mean.to(device, state.running_mean.scalar_type(), false, true);
  state.running_var = state.running_var.to(device, state.running_var.scalar_type(), false, true);
  std::vector<at::Tensor> leaves = {make_leaf(inputs.x), state.weight, state.bias};
  at::Tensor residual;
  if (inputs.residual.defined()) leaves.push_back(residual = make_leaf(inputs.residual));
  const at::Tensor y = function(leaves[0], residual, state);
  NormResults results = {y.detach().cpu(), state.running_mean.cpu(), state.running_var.cpu()};
  y.backward(inputs.dy.to(device));
  for (const at::Tensor& leaf : leaves) results.push_back(leaf.grad().cpu());
  return results;
}

}  // namespace scalelab::trainer
