// An ordered list of tensors with names.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

inline at::Tensor FlagsOf(const std::vector<bool>& flags) {
  const at::Tensor bytes = at::empty({std::ssize(flags)}, at::kByte);
  std::copy(flags.begin(), flags.end(), static_cast<uint8_t*>(bytes.data_ptr()));
  return bytes;
}
inline std::vector<bool> FlagsIn(const at::Tensor& bytes) {
  const auto* first = static_cast<const uint8_t*>(bytes.data_ptr());
  return std::vector<bool>(first, first + bytes.numel());
}

// Returns the tensors whose names begin with `prefix`, and removes it from the names.
inline NamedTensors Below(const NamedTensors& tensors, std::string_view prefix) {
  NamedTensors below;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) below.emplace_back(name.substr(prefix.size()), tensor);
  }
  return below;
}

// Appends `tensors` to `into`, with `prefix` before their names.
inline void AppendBelow(NamedTensors& into, std::string_view prefix, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) into.emplace_back(std::string(prefix) + name, tensor);
}

}  // namespace scalelab::trainer
