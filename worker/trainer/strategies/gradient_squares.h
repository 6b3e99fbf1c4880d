// Squared norms of gradients, for the noise scale (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1).
#pragma once

#include <utility>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// Adds up the squares of flat tensors on their device. The host does not wait for the device.
class GradientSquares {
 public:
  void Add(const at::Tensor& flat) {
    const at::NoGradGuard no_grad;
    // A dot product is precise for millions of elements; a norm is not.
    if (flat.numel() > 0) parts_.push_back(at::dot(flat, flat));
  }
  // Returns the sum in double precision, and resets it. Returns an undefined tensor if nothing was added.
  at::Tensor Take() {
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> parts = std::exchange(parts_, {});
    return parts.empty() ? at::Tensor() : at::stack(parts).sum(at::kDouble);
  }

 private:
  std::vector<at::Tensor> parts_;
};

}  // namespace scalelab::trainer
