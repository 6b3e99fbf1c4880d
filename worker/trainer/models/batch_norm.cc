#include "worker/trainer/models/batch_norm.h"

#include "worker/trainer/errors.h"

namespace scalelab::trainer {

BatchNormMode ParseBatchNormMode(const std::string& name) {
  if (name == "train") return BatchNormMode::kTrain;
  if (name == "sync") return BatchNormMode::kSync;
  if (name == "eval") return BatchNormMode::kEval;
  throw TrainerError("unknown batch_norm \"" + name + "\": use train, sync or eval");
}

BatchNorm::BatchNorm(int64_t channels, const BatchNormOptions& options, double epsilon) : options_(options) {
  state_.epsilon = epsilon;
  state_.weight = register_parameter("weight", at::ones({channels}));
  state_.bias = register_parameter("bias", at::zeros({channels}));
  state_.running_mean = register_buffer("running_mean", at::zeros({channels}));
  state_.running_var = register_buffer("running_var", at::ones({channels}));
}

at::Tensor BatchNorm::forward(const at::Tensor& x) { return Apply(x, {}, false); }

at::Tensor BatchNorm::ForwardRelu(const at::Tensor& x) { return Apply(x, {}, true); }

at::Tensor BatchNorm::ForwardAddRelu(const at::Tensor& x, const at::Tensor& residual) {
  return Apply(x, residual, true);
}

void BatchNorm::ApplyZeroGamma() {
  const at::NoGradGuard no_grad;
  if (options_.zero_gamma) state_.weight.zero_();
}

at::Tensor BatchNorm::Apply(const at::Tensor& x, const at::Tensor& residual, bool relu) {
  const bool batch_statistics = is_training() && options_.mode != BatchNormMode::kEval;
  const bool sync = batch_statistics && options_.mode == BatchNormMode::kSync;
  if (!sync && CanFuseNorm(x)) return FusedNorm(x, residual, state_, batch_statistics, relu);

  // One value per channel has the variance 0. LibTorch divides it by 0 and adds the result to the running variance.
  const bool single = batch_statistics && !sync && x.numel() == x.size(1);
  const at::Tensor running_var = single ? state_.running_var.clone() : state_.running_var;
  at::Tensor y =
      sync ? SyncBatchNorm(x, state_, *options_.communicator)
           : at::batch_norm(x, state_.weight, state_.bias, state_.running_mean, running_var, batch_statistics,
                            state_.momentum, state_.epsilon, /*cudnn_enabled=*/true);
  if (single) state_.running_var.mul_(1 - state_.momentum);
  if (residual.defined()) y = y + residual;
  return relu ? y.relu() : y;
}

}  // namespace scalelab::trainer
