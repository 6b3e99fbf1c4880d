// Evaluation of a model on the test set.
#pragma once

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/data/dataset.h"
#include "worker/trainer/precision.h"

namespace scalelab::trainer {

class Model;

struct Evaluation {
  double loss = 0, accuracy = 0, seconds = 0;
  int64_t samples = 0;  // over all ranks
};

// Evaluates the model on the whole set. Each rank takes a contiguous part of the set, and all ranks get the
// same result. Collective. Leaves the model in training mode.
Evaluation Evaluate(Model& model, const ImageSet& set, Precision precision, at::Device device,
                    at::MemoryFormat format, Communicator& communicator);

// Returns the mean cross-entropy of `logits` [rows, classes]; `labels` has one element for each row, in any
// shape.
at::Tensor MeanLoss(const at::Tensor& logits, const at::Tensor& labels);

// Returns the number of rows of `logits` whose largest element is at their label, as a tensor
// on their device. Labels [n, tokens] count as n samples: a token is a part of its sample.
at::Tensor CountCorrect(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace scalelab::trainer
