// Keeps gradients of float16 in its range, as torch.amp.GradScaler does.
#pragma once

#include <vector>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

// The loss is multiplied by a scale, so that small gradients do not vanish, and the gradients are divided by
// it. A step with a gradient that is not finite is left out, by all ranks, and halves the scale; 2000 steps
// in a row without one double it. All of it happens on the device; the host never waits.
class LossScaler {
 public:
  // What is not `active` passes everything on.
  LossScaler(bool active, at::Device device);

  at::Tensor Scale(const at::Tensor& loss) const;
  // Takes the scale out of the gradients, and sets the scale of the next step. Returns 1 on the device if any
  // is not finite on any rank of `communicator` (null: on this rank), else 0; undefined when not active.
  at::Tensor Unscale(const std::vector<at::Tensor>& parameters, Communicator* communicator);

  // One number on the device; undefined when not active.
  const at::Tensor& scale() const { return scale_; }
  // The last result of Unscale.
  const at::Tensor& left_out() const { return found_; }

 private:
  at::Tensor scale_, good_steps_, found_;
};

}  // namespace scalelab::trainer
