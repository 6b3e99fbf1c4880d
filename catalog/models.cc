#include "catalog/models.h"

namespace scalelab {

const std::vector<ModelInfo>& Models() {
  static const auto& models = *new std::vector<ModelInfo>{
      {"resnet20", 1, 0, 0, 16},
      {"resnet32", 1, 0, 0, 16},
      {"resnet44", 1, 0, 0, 16},
      {"resnet56", 1, 0, 0, 16},  // for CIFAR's image size
      {"resnet18", 1, 0, 0, 64},
      {"resnet34", 1, 0, 0, 64},
      {"resnet50", 1, 0, 0, 64},
      {"resnet101", 1, 0, 0, 64},
      {"resnet152", 1, 0, 0, 64},
      {"mobilenet_v2"},
      {"alexnet", 63},                  // smaller: empty last max pooling
      {"inception_v3", 299},            // smaller: empty auxiliary classifier
      {"vgg16", 32},                    // halves the image five times
      {"gpt-nano", 1, 128, 256, 0, 3},  // on tokens
      {"gpt-small", 1, 1024, 50257, 0, 12},
  };
  return models;
}

const ModelInfo* FindModel(absl::string_view name) {
  for (const ModelInfo& model : Models()) {
    if (model.name == name) return &model;
  }
  return nullptr;
}

}  // namespace scalelab
