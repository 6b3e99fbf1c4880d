// The weights of a run before and after training.
#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "worker/trainer/checkpoint/safetensors.h"
#include "worker/trainer/data/dataset.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

class Communicator;
class Model;

// Makes the model that every rank starts with. For a given model, the weights depend on spec.seed and
// spec.zero_gamma only; they are contiguous and on the CPU. `communicator` is used by batch_norm "sync" and
// may be null if the model will not train. Seeds Torch's default generator. Throws TrainerError for images
// that are too small for the model, and if the model does not have zero_gamma.
std::shared_ptr<Model> MakeInitialModel(const TrainingSpec& spec, const ImageShape& shape,
                                        Communicator* communicator);

// Returns the parameters in the order of registration, then the buffers (running statistics), with their
// names in the model.
NamedTensors ParametersAndBuffers(const Model& model);

// Writes the weights of MakeInitialModel as a safetensors file (`scalelab-trainer
// --print-initial-parameters`), for other programs that start from the same weights. Reads only the number of
// classes from the data set.
void PrintInitialParameters(const TrainingSpec& spec, std::ostream& out);

// Returns the path that save_parameters writes to: parameters.safetensors in $SCALELAB_ATTEMPT_DIR. Throws
// TrainerError if that variable is not set.
std::string ParametersPath();

}  // namespace scalelab::trainer
