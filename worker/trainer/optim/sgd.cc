#include "worker/trainer/optim/sgd.h"

#include "worker/trainer/compat.h"

namespace scalelab::trainer {

bool Sgd::HasFused() { return SCALELAB_TORCH_AT_LEAST(2, 4); }

Sgd::Sgd(const std::vector<at::Tensor>& parameters, double momentum, double weight_decay, bool decay_norm,
         bool fused)
    : momentum_(momentum), fused_(fused), groups_(2) {
  TORCH_CHECK(!fused || HasFused(), "a fused optimizer step needs LibTorch 2.4 or later");
  if (fused) device_rate_ = at::zeros({}, parameters.front().options().requires_grad(false));
  groups_[0].weight_decay = weight_decay;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad()) continue;
    Group& group = groups_[parameter.dim() < 2 && !decay_norm ? 1 : 0];
    group.parameters.push_back(parameter);
    group.velocities.push_back(at::zeros_like(parameter));
  }
}

void Sgd::SetRate(double rate) {
  rate_ = rate;
  if (fused_) device_rate_.fill_(rate);
}

void Sgd::Apply(const at::Tensor& left_out) {
  TORCH_CHECK(fused_ || !left_out.defined(), "only a fused optimizer step can be left out on the device");
  const at::NoGradGuard no_grad;
  for (const Group& group : groups_) {
    std::vector<at::Tensor> parameters, gradients, velocities;
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const at::Tensor& gradient = group.parameters[i].grad();
      if (!gradient.defined()) continue;
      parameters.push_back(group.parameters[i]);
      velocities.push_back(group.velocities[i]);
      gradients.push_back(gradient);
    }
    if (parameters.empty()) continue;
#if SCALELAB_TORCH_AT_LEAST(2, 4)
    if (fused_) {
      std::optional<at::Tensor> found;
      if (left_out.defined()) found = left_out;
      at::_fused_sgd_(parameters, gradients, velocities, group.weight_decay, momentum_, device_rate_,
                      /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false,
                      /*grad_scale=*/{}, found);
      continue;
    }
#endif
    if (group.weight_decay != 0) at::_foreach_add_(gradients, parameters, group.weight_decay);
    at::_foreach_mul_(velocities, momentum_);
    at::_foreach_add_(velocities, gradients, 1);
    at::_foreach_add_(parameters, velocities, -rate_);
  }
}

}  // namespace scalelab::trainer
