// A fingerprint by which ranks (and repeats of a run) show that they hold the same parameters.
#pragma once

#include <string>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// 16 hexadecimal digits over the bytes of the tensors one after another, each in logical (contiguous) order
// whatever its memory format. Meant for parameters: running statistics may differ between ranks (batch_norm
// "train").
std::string ParameterHash(const std::vector<at::Tensor>& tensors);

}  // namespace scalelab::trainer
