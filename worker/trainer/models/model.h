// Models by name.
#pragma once

#include <memory>
#include <string>

#include "worker/trainer/models/batch_norm.h"
#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// What a model gives while it trains.
struct TrainingLogits {
  at::Tensor logits;     // [n, classes]
  at::Tensor auxiliary;  // the same of a second classifier; undefined where there is none
};

// Weight of the auxiliary classifier's loss, as torchvision's reference training has it; Szegedy et al.,
// "Going Deeper with Convolutions" (2014), section 5, took 0.3.
inline constexpr double kAuxiliaryWeight = 0.4;

class Model : public torch::nn::Module {
 public:
  // Images [n, channels, height, width] -> logits [n, classes].
  virtual at::Tensor forward(const at::Tensor& images) = 0;
  // The same for a training step.
  virtual TrainingLogits ForwardTraining(const at::Tensor& images) { return {forward(images), {}}; }
};

// Makes model `name` for `classes` classes with initial weights drawn from Torch's default generator. Throws
// TrainerError that lists the known ones for an unknown name.
std::shared_ptr<Model> MakeModel(const std::string& name, int classes, const BatchNormOptions& batch_norm);

// Numbers of all parameters that are trained.
int64_t CountParameters(const Model& model);

}  // namespace scalelab::trainer
