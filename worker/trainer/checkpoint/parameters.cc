#include "worker/trainer/checkpoint/parameters.h"

#include <cstdlib>

#include "worker/trainer/errors.h"
#include "worker/trainer/launch.h"

namespace scalelab::trainer {

std::shared_ptr<Model> MakeInitialModel(const TrainingSpec& spec, const ImageShape& shape,
                                        Communicator* communicator) {
  torch::manual_seed(static_cast<uint64_t>(spec.seed));
  return MakeModel(spec.model, shape.classes, {ParseBatchNormMode(spec.batch_norm), communicator});
}

NamedTensors ParametersAndBuffers(const Model& model) {
  NamedTensors tensors;
  for (const auto& named : model.named_parameters()) tensors.emplace_back(named.key(), named.value());
  for (const auto& named : model.named_buffers()) tensors.emplace_back(named.key(), named.value());
  return tensors;
}

void PrintInitialParameters(const TrainingSpec& spec, std::ostream& out) {
  ConfigureCpu(static_cast<int>(spec.cpus_per_rank));
  WriteSafetensors(ParametersAndBuffers(*MakeInitialModel(spec, ReadShape(spec), nullptr)), out);
}

std::string ParametersPath() {
  const char* directory = std::getenv("SCALELAB_ATTEMPT_DIR");
  if (directory == nullptr || *directory == '\0') {
    throw TrainerError(
        "save_parameters needs a directory to save them in: set SCALELAB_ATTEMPT_DIR, or leave "
        "save_parameters "
        "out");
  }
  return std::string(directory) + "/parameters.safetensors";
}

}  // namespace scalelab::trainer
