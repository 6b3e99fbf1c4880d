#include "worker/trainer/optim/loss_scaler.h"

namespace scalelab::trainer {
namespace {

constexpr double kFirstScale = 65536, kGrowth = 2, kBackoff = 0.5;
constexpr int64_t kGrowthInterval = 2000;  // steps

}  // namespace

LossScaler::LossScaler(bool active, at::Device device) {
  if (!active) return;
  scale_ = at::full({1}, kFirstScale, at::TensorOptions(device).dtype(at::kFloat));
  good_steps_ = at::zeros({1}, at::TensorOptions(device).dtype(at::kInt));
  found_ = at::zeros_like(scale_);
}

NamedTensors LossScaler::State() const {
  if (!scale_.defined()) return {};
  return {{"scale", scale_}, {"good_steps", good_steps_}};
}

at::Tensor LossScaler::Scale(const at::Tensor& loss) const {
  return scale_.defined() ? loss * scale_.squeeze() : loss;
}

at::Tensor LossScaler::Unscale(const std::vector<at::Tensor>& parameters, Communicator* communicator) {
  if (!scale_.defined()) return {};
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  found_.zero_();
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_,
                                                 scale_.to(at::kDouble).reciprocal().to(at::kFloat));
  if (communicator != nullptr) communicator->AllReduce(found_, ReduceOp::kMax);
  at::_amp_update_scale_(scale_, good_steps_, found_, kGrowth, kBackoff, kGrowthInterval);
  return found_;
}

}  // namespace scalelab::trainer
