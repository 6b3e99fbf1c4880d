// The networks that can be trained, by name: what users, coordinator and trainer must agree on. No protobuf
// here; the trainer links it.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab {

struct ModelInfo {
  absl::string_view name;
  // Side in pixels of the smallest square image that training takes; 1 where any will do.
  int smallest_image = 1;
};

// All models, in the order in which they are listed.
const std::vector<ModelInfo>& Models();
// Null when there is no such model.
const ModelInfo* FindModel(absl::string_view name);

}  // namespace scalelab
