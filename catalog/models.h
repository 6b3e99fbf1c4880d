// The models that can be trained, by name. Users, coordinator and trainer share this table. Independent of
// protobuf, because the trainer links this library.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab {

struct ModelInfo {
  absl::string_view name;
  // Minimum side in pixels of the square training images; 1 means no minimum.
  int smallest_image = 1;
  // Of a model that trains on tokens: the largest number of tokens of a sample, and the usual number of different tokens.
  // 0: it trains on images.
  int context = 0, vocabulary = 0;
  // Of a model whose layers native/tensor can divide: the number of ranks that divide them is a divisor of `channels`, or at most
  // `heads`. 0: this limit does not exist.
  int channels = 0, heads = 0;
  bool batch_norm = false;  // whether it has batch normalisation
};

// Returns all models, in the order in which they are listed to users.
const std::vector<ModelInfo>& Models();
// Returns the model of that name, or null.
const ModelInfo* FindModel(absl::string_view name);

}  // namespace scalelab
