// Models and their registry.
#pragma once

#include <memory>
#include <string>

#include "worker/trainer/models/batch_norm.h"
#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// The output of a model in training.
struct TrainingLogits {
  at::Tensor logits;     // [n, classes]
  at::Tensor auxiliary;  // the logits of a second classifier; undefined if there is none
};

// Weight of the auxiliary classifier's loss in torchvision's reference training. Szegedy et al., "Going
// Deeper with Convolutions" (2014), section 5, used 0.3.
inline constexpr double kAuxiliaryWeight = 0.4;

class Model : public torch::nn::Module {
 public:
  // Returns the logits [n, classes] of images [n, channels, height, width]; or [n * length, vocabulary] of the tokens that
  // follow each of tokens [n, length].
  virtual at::Tensor forward(const at::Tensor& images) = 0;
  // Returns the outputs for a training step.
  virtual TrainingLogits ForwardTraining(const at::Tensor& images) { return {forward(images), {}}; }
};

// Makes model `name` for `classes` classes, or different tokens, with initial weights from Torch's default generator. For an
// unknown name, throws TrainerError that lists the known ones.
std::shared_ptr<Model> MakeModel(const std::string& name, int classes, const BatchNormOptions& batch_norm);

// Returns the number of trained parameters (scalars).
int64_t CountParameters(const Model& model);

}  // namespace scalelab::trainer
