// Batch normalization over [n, channels, height, width] in three modes, with the addition and rectification
// that follow it in a residual network.
#pragma once

#include <torch/nn/module.h>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/models/fused_norm.h"
#include "worker/trainer/torch.h"

namespace scalelab::trainer {

enum class BatchNormMode {
  kTrain,  // statistics of the rank's own batch
  kSync,   // statistics of the batches of all ranks
  kEval,   // frozen running statistics, in training too
};

struct BatchNormOptions {
  BatchNormMode mode = BatchNormMode::kTrain;
  Communicator* communicator = nullptr;  // for kSync; must outlive the model
  bool zero_gamma = false;               // the last normalization of each residual block starts with weight 0
};

BatchNormMode ParseBatchNormMode(const std::string& name);

class BatchNorm : public torch::nn::Module {
 public:
  BatchNorm(int64_t channels, const BatchNormOptions& options, double epsilon = 1e-5);

  at::Tensor forward(const at::Tensor& x);
  // Returns relu(forward(x)).
  at::Tensor ForwardRelu(const at::Tensor& x);
  // Returns relu(forward(x) + residual).
  at::Tensor ForwardAddRelu(const at::Tensor& x, const at::Tensor& residual);

  // Sets the weight to 0 with option zero_gamma. For the last normalization of a residual block.
  void ApplyZeroGamma();

 private:
  at::Tensor Apply(const at::Tensor& x, const at::Tensor& residual, bool relu);

  BatchNormOptions options_;
  NormState state_;
};

// Normalizes by the statistics of all ranks, computed in double precision (on a GPU in single precision), and updates
// the running statistics. Gradients take all ranks into account. Uses two small blocking all-reduces, one in forward and
// one in backward.
at::Tensor SyncBatchNorm(const at::Tensor& x, const NormState& state, Communicator& communicator);

}  // namespace scalelab::trainer
