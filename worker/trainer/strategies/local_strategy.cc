#include "worker/trainer/strategies/local_strategy.h"

#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

LocalStrategy::LocalStrategy(Model& model, Communicator& communicator)
    : GradientStrategy(model), alone_(communicator.size() == 1), parameters_(model.parameters()) {
  for (const at::Tensor& parameter : parameters_) communicator.Broadcast(parameter.detach(), 0);
  for (const at::Tensor& buffer : model.buffers()) communicator.Broadcast(buffer, 0);
}

void LocalStrategy::BeginStep() {
  if (in_step_) return;
  in_step_ = true;
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

void LocalStrategy::Accumulate(const at::Tensor& loss) {
  BeginStep();
  loss.backward();
}

BackwardCost LocalStrategy::Backward(const at::Tensor& loss) {
  Accumulate(loss);
  in_step_ = false;
  BackwardCost cost;
  cost.computed = DeviceEvent(loss.device());
  return cost;
}

}  // namespace scalelab::trainer
