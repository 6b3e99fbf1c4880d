// Copies of weights in the type of automatic mixed precision. The optimizer writes them with the weights (optim/sgd.h). Without
// copies, LibTorch converts the weights in every step.
#pragma once

#include <unordered_map>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

class WeightCopies {
 public:
  // Copies the weights of convolutions, which are the parameters with four dimensions.
  WeightCopies(const std::vector<at::Tensor>& parameters, at::ScalarType type);

  // Returns the copy of a parameter; an undefined tensor if it has none.
  at::Tensor Of(const at::Tensor& parameter) const;
  // Copies all weights. Call it after anything other than the optimizer has changed them.
  void Refresh();

  // Sets the copies that ComputeWeight uses in the calling thread during the lifetime of this object. If
  // `copies` is null, it uses none.
  class Scope {
   public:
    explicit Scope(const WeightCopies* copies);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const WeightCopies* const before_;
  };

 private:
  struct Pair {
    at::Tensor parameter, copy;
  };
  std::unordered_map<const at::TensorImpl*, Pair> pairs_;
};

// Returns the copy of the weight, or the weight itself if there is no copy. A gradient of the copy becomes
// the gradient of the weight.
at::Tensor ComputeWeight(const at::Tensor& weight);

}  // namespace scalelab::trainer
