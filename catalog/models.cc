#include "catalog/models.h"

namespace scalelab {

const std::vector<ModelInfo>& Models() {
  static const auto& models = *new std::vector<ModelInfo>{
      {"resnet8", 1, 0, 0, 16, 0, true, true},
      {"resnet20", 1, 0, 0, 16, 0, true, true},
      {"resnet32", 1, 0, 0, 16, 0, true, true},
      {"resnet44", 1, 0, 0, 16, 0, true, true},
      {"resnet56", 1, 0, 0, 16, 0, true, true},  // for CIFAR's image size
      {"resnet18", 1, 0, 0, 64, 0, true, true},
      {"resnet34", 1, 0, 0, 64, 0, true, true},
      {"resnet50", 1, 0, 0, 64, 0, true, true},
      {"resnet101", 1, 0, 0, 64, 0, true, true},
      {"resnet152", 1, 0, 0, 64, 0, true, true},
      {"mobilenet_v2", 1, 0, 0, 0, 0, true},
      {"alexnet", 63},                          // with smaller images, the last max pooling has no output
      {"inception_v3", 299, 0, 0, 0, 0, true},  // with smaller images, the auxiliary classifier has no input
      {"vgg16", 32},                            // halves the image five times
      {"gpt-nano", 1, 128, 256, 0, 3},          // on tokens
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
