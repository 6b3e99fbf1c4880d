// The table of models, by name. The client, the coordinator and the trainer use this table. This library does
// not use protobuf, because the trainer links it.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab {

struct ModelInfo {
  absl::string_view name;
  // Minimum side in pixels of the square training images; 1 means no minimum.
  int smallest_image = 1;
  // For a model that trains on tokens: the largest number of tokens in a sample, and the usual number of
  // different tokens. 0 for a model that trains on images.
  int context = 0, vocabulary = 0;
  // For a model whose layers native/tensor can divide: the number of ranks must be a divisor of `channels`,
  // or at most `heads`. 0 means that there is no such limit.
  int channels = 0, heads = 0;
  bool batch_norm = false;  // whether it has batch normalisation
  bool zero_gamma = false;  // whether it supports zero_gamma: it is a ResNet
};

// Returns all models, in the order in which they are listed to users.
const std::vector<ModelInfo>& Models();
// Returns the model of that name, or null.
const ModelInfo* FindModel(absl::string_view name);

}  // namespace scalelab
