// Keeps float16 gradients in range, as torch.amp.GradScaler does.
#pragma once

#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/named_tensors.h"

namespace scalelab::trainer {

// Multiplies the loss by a scale, so that small gradients do not underflow, and divides the gradients by it.
// All ranks skip a step with a gradient that is not finite, and halve the scale; 2000 consecutive steps
// without one double it. Everything happens on the device; the host never waits.
class LossScaler {
 public:
  // If not `active`, Scale returns the loss unchanged and Unscale does nothing.
  LossScaler(bool active, at::Device device);

  at::Tensor Scale(const at::Tensor& loss) const;
  // Divides the gradients by the scale and sets the scale of the next step. Returns a tensor on the device: 1
  // if a gradient is not finite on any rank of `communicator`, else 0. If `communicator` is null, considers
  // only this rank. The result is undefined if not active.
  at::Tensor Unscale(const std::vector<at::Tensor>& parameters, Communicator* communicator);

  // Returns the tensors that Unscale changes; writing into them restores a state.
  NamedTensors State() const;

  // A tensor of one number on the device; undefined if not active.
  const at::Tensor& scale() const { return scale_; }
  // Returns the last result of Unscale.
  const at::Tensor& left_out() const { return found_; }

 private:
  at::Tensor scale_, good_steps_, found_;
};

}  // namespace scalelab::trainer
