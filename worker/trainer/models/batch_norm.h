// Batch normalisation over [n, channels, height, width], with the three ways of taking statistics that a run
// can ask for, and the addition and rectification that follow it in a residual network.
#pragma once

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/models/fused_norm.h"
#include "worker/trainer/torch.h"

namespace scalelab::trainer {

enum class BatchNormMode {
  kTrain,  // each rank by its own batch
  kSync,   // by the batches of all ranks
  kEval,   // running statistics, frozen, while training too
};

struct BatchNormOptions {
  BatchNormMode mode = BatchNormMode::kTrain;
  Communicator* communicator = nullptr;  // for kSync; must outlive the model
};

BatchNormMode ParseBatchNormMode(const std::string& name);

class BatchNorm : public torch::nn::Module {
 public:
  BatchNorm(int64_t channels, const BatchNormOptions& options, double epsilon = 1e-5);

  at::Tensor forward(const at::Tensor& x);
  // relu(forward(x)).
  at::Tensor ForwardRelu(const at::Tensor& x);
  // relu(forward(x) + residual).
  at::Tensor ForwardAddRelu(const at::Tensor& x, const at::Tensor& residual);

 private:
  at::Tensor Apply(const at::Tensor& x, const at::Tensor& residual, bool relu);

  BatchNormOptions options_;
  NormState state_;
};

// Batch normalisation over all ranks with gradients that see all ranks. Statistics are taken in double
// precision; two small blocking all-reduces, one in forward and one in backward. Moves the running
// statistics.
at::Tensor SyncBatchNorm(const at::Tensor& x, const NormState& state, Communicator& communicator);

}  // namespace scalelab::trainer
