#include "worker/trainer/checkpoint/parameters.h"

#include <cstdlib>

#include "catalog/models.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

namespace {

// Throws if the model trains on images and the data set has tokens, or the other way round, or if samples are too long.
void CheckTokens(const ModelInfo* model, const TrainingSpec& spec, const ImageShape& shape) {
  if (model == nullptr) return;
  if ((model->context > 0) != (shape.tokens > 0)) {
    throw TrainerError(
        "model \"" + spec.model + "\" trains on " + (model->context > 0 ? "tokens" : "images") +
        ", not on those of data set \"" + spec.dataset + "\": set dataset to " +
        (model->context > 0 ? "tokens or synthetic-tokens" : "cifar10, imagefolder or synthetic"));
  }
  if (shape.tokens > model->context) {
    throw TrainerError("model \"" + spec.model + "\" takes samples of up to " +
                       std::to_string(model->context) + " tokens, not " + std::to_string(shape.tokens) +
                       ": reduce sequence_length");
  }
}

}  // namespace

std::shared_ptr<Model> MakeInitialModel(const TrainingSpec& spec, const ImageShape& shape,
                                        Communicator* communicator) {
  const ModelInfo* info = FindModel(spec.model);
  CheckTokens(info, spec, shape);
  if (info != nullptr && shape.tokens == 0 && shape.side < info->smallest_image) {
    const std::string smallest = std::to_string(info->smallest_image), side = std::to_string(shape.side);
    throw TrainerError("model \"" + spec.model + "\" needs images of at least " + smallest + " x " +
                       smallest + " pixels, not " + side + " x " + side + ": set image_size to " + smallest +
                       " or more");
  }
  if (spec.zero_gamma && info != nullptr && !info->zero_gamma) {
    throw TrainerError("zero_gamma is for ResNets, not for model \"" + spec.model +
                       "\": set zero_gamma to false, or use for example resnet50");
  }
  at::manual_seed(static_cast<uint64_t>(spec.seed));
  return MakeModel(spec.model, shape.classes,
                   {ParseBatchNormMode(spec.batch_norm), communicator, spec.zero_gamma});
}

NamedTensors ParametersAndBuffers(const Model& model) {
  NamedTensors tensors;
  for (const auto& named : model.named_parameters()) tensors.emplace_back(named.key(), named.value());
  for (const auto& named : model.named_buffers()) tensors.emplace_back(named.key(), named.value());
  return tensors;
}

void PrintInitialParameters(const TrainingSpec& spec, std::ostream& out) {
  WriteSafetensors(ParametersAndBuffers(*MakeInitialModel(spec, ReadShape(spec), nullptr)), out);
}

std::string ParametersPath() {
  const char* directory = std::getenv("SCALELAB_ATTEMPT_DIR");
  if (directory == nullptr || *directory == '\0') {
    throw TrainerError(
        "save_parameters needs a directory to save them in: set SCALELAB_ATTEMPT_DIR, or remove "
        "save_parameters");
  }
  return std::string(directory) + "/parameters.safetensors";
}

}  // namespace scalelab::trainer
