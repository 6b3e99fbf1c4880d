// How good the model is on the test set.
#pragma once

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/data/dataset.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/precision.h"

namespace scalelab::trainer {

struct Evaluation {
  double loss = 0, accuracy = 0, seconds = 0;
  int64_t samples = 0;  // over all ranks
};

// Each rank takes its contiguous share of the set, every sample once, and all get the same result.
// Collective. Leaves the model in training mode.
Evaluation Evaluate(Model& model, const ImageSet& set, Precision precision, at::Device device,
                    at::MemoryFormat format, Communicator& communicator);

// How many rows of `logits` are largest at their label, as a number on their device.
at::Tensor CountCorrect(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace scalelab::trainer
