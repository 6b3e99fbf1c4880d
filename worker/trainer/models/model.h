// Models by name.
#pragma once

#include <memory>
#include <string>

#include "worker/trainer/models/batch_norm.h"
#include "worker/trainer/torch.h"

namespace scalelab::trainer {

class Model : public torch::nn::Module {
 public:
  // Images [n, channels, height, width] -> logits [n, classes].
  virtual at::Tensor forward(const at::Tensor& images) = 0;
};

// Makes model `name` for `classes` classes with initial weights drawn from Torch's default generator. Throws
// TrainerError that lists the known ones for an unknown name.
std::shared_ptr<Model> MakeModel(const std::string& name, int classes, const BatchNormOptions& batch_norm);

// Numbers of all parameters that are trained.
int64_t CountParameters(const Model& model);

}  // namespace scalelab::trainer
