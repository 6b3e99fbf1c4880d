// A fingerprint of parameters, used to check whether ranks, or repetitions of a run, have equal parameters.
#pragma once

#include <string>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// Returns 16 hexadecimal digits that depend on the bytes of all tensors, each in logical (contiguous)
// order, so the memory format does not matter. Pass parameters only: running statistics may differ between
// ranks (batch_norm "train").
std::string ParameterHash(const std::vector<at::Tensor>& tensors);

}  // namespace scalelab::trainer
