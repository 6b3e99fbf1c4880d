// Tensors with their names, in an order.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

}  // namespace scalelab::trainer
