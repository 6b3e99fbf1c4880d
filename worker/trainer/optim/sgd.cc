#include "worker/trainer/optim/sgd.h"

namespace scalelab::trainer {

Sgd::Sgd(const std::vector<at::Tensor>& parameters, double momentum, double weight_decay, bool decay_norm)
    : momentum_(momentum), groups_(2) {
  groups_[0].weight_decay = weight_decay;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad()) continue;
    Group& group = groups_[parameter.dim() < 2 && !decay_norm ? 1 : 0];
    group.parameters.push_back(parameter);
    group.velocities.push_back(at::zeros_like(parameter));
  }
}

void Sgd::Step(double rate) {
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
    if (group.weight_decay != 0) at::_foreach_add_(gradients, parameters, group.weight_decay);
    at::_foreach_mul_(velocities, momentum_);
    at::_foreach_add_(velocities, gradients, 1);
    at::_foreach_add_(parameters, velocities, -rate);
  }
}

}  // namespace scalelab::trainer
