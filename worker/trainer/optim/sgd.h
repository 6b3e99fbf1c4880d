// Stochastic gradient descent with momentum and an L2 penalty.
#pragma once

#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// v = momentum * v + grad + weight_decay * p;  p = p - rate * v  (v starts at 0), as in torch.optim.SGD.
// Gradients are used up: the penalty is added to them in place.
class Sgd {
 public:
  // Without `decay_norm`, parameters of less than two dimensions (normalisation, biases) have no penalty.
  Sgd(const std::vector<at::Tensor>& parameters, double momentum, double weight_decay, bool decay_norm);
  // Passes over parameters without a gradient.
  void Step(double rate);

 private:
  struct Group {
    std::vector<at::Tensor> parameters, velocities;
    double weight_decay = 0;
  };
  double momentum_;
  std::vector<Group> groups_;
};

}  // namespace scalelab::trainer
