// The weights of a run, before its training and after it.
#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "worker/trainer/checkpoint/safetensors.h"
#include "worker/trainer/data/dataset.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// The model of a run as every rank starts with it: weights drawn from spec.seed alone, on the CPU,
// contiguous. `communicator` is for batch_norm "sync", null where no batch is to be seen. Seeds Torch's
// default generator. Throws TrainerError for images that are too small for the model.
std::shared_ptr<Model> MakeInitialModel(const TrainingSpec& spec, const ImageShape& shape,
                                        Communicator* communicator);

// Parameters in the order of registration, then the buffers (running statistics), by the names they have in
// the model.
NamedTensors ParametersAndBuffers(const Model& model);

// `scalelab-trainer --print-initial-parameters`: those of MakeInitialModel as a safetensors file, for
// programs that are to start from the same weights. Looks at a data set only as far as the number of classes
// takes it.
void PrintInitialParameters(const TrainingSpec& spec, std::ostream& out);

// Where field save_parameters puts them: parameters.safetensors in $SCALELAB_ATTEMPT_DIR. Throws TrainerError
// where that is not set.
std::string ParametersPath();

}  // namespace scalelab::trainer
