#include "worker/trainer/models/batch_norm.h"

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

constexpr double kMomentum = 0.1;
constexpr double kEpsilon = 1e-5;

}  // namespace

BatchNormMode ParseBatchNormMode(const std::string& name) {
  if (name == "train") return BatchNormMode::kTrain;
  if (name == "sync") return BatchNormMode::kSync;
  if (name == "eval") return BatchNormMode::kEval;
  throw TrainerError("batch_norm \"" + name + "\" is none of train, sync, eval");
}

BatchNorm::BatchNorm(int64_t channels, const BatchNormOptions& options) : options_(options) {
  weight_ = register_parameter("weight", at::ones({channels}));
  bias_ = register_parameter("bias", at::zeros({channels}));
  running_mean_ = register_buffer("running_mean", at::zeros({channels}));
  running_var_ = register_buffer("running_var", at::ones({channels}));
}

at::Tensor BatchNorm::forward(const at::Tensor& x) {
  const bool batch_statistics = is_training() && options_.mode != BatchNormMode::kEval;
  if (batch_statistics && options_.mode == BatchNormMode::kSync) {
    return SyncBatchNorm(x, weight_, bias_, running_mean_, running_var_, kMomentum, kEpsilon,
                         *options_.communicator);
  }
  return at::batch_norm(x, weight_, bias_, running_mean_, running_var_, batch_statistics, kMomentum, kEpsilon,
                        /*cudnn_enabled=*/true);
}

at::Tensor BatchNorm::ForwardRelu(const at::Tensor& x) { return forward(x).relu_(); }

at::Tensor BatchNorm::ForwardAddRelu(const at::Tensor& x, const at::Tensor& residual) {
  return forward(x).add_(residual).relu_();
}

}  // namespace scalelab::trainer
