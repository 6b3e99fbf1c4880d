#include "catalog/models.h"

namespace scalelab {

const std::vector<ModelInfo>& Models() {
  static const auto& models = *new std::vector<ModelInfo>{
      {"resnet20"},          {"resnet32"},     {"resnet44"},    {"resnet56"},  // of CIFAR
      {"resnet18"},          {"resnet34"},     {"resnet50"},    {"resnet101"},
      {"resnet152"},         {"mobilenet_v2"}, {"alexnet", 63},  // or its last maximum has nothing to look at
      {"inception_v3", 299},                                     // or its auxiliary classifier has not
      {"vgg16", 32},                                             // halves the image five times
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
