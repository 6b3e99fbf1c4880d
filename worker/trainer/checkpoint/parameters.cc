#include "worker/trainer/checkpoint/parameters.h"

#include <cstdlib>

#include "catalog/models.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

std::shared_ptr<Model> MakeInitialModel(const TrainingSpec& spec, const ImageShape& shape,
                                        Communicator* communicator) {
  const ModelInfo* info = FindModel(spec.model);
  if (info != nullptr && shape.side < info->smallest_image) {
    const std::string smallest = std::to_string(info->smallest_image), side = std::to_string(shape.side);
    throw TrainerError("model \"" + spec.model + "\" needs images of at least " + smallest + " x " +
                       smallest + " pixels, not " + side + " x " + side + ": set image_size to " + smallest +
                       " or more");
  }
  at::manual_seed(static_cast<uint64_t>(spec.seed));
  return MakeModel(spec.model, shape.classes, {ParseBatchNormMode(spec.batch_norm), communicator});
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
