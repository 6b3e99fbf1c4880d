#include "catalog/models.h"

namespace scalelab {

const std::vector<ModelInfo>& Models() {
  static const auto& models = *new std::vector<ModelInfo>{
      {"resnet20"},
      {"resnet32"},
      {"resnet44"},
      {"resnet56"},  // for CIFAR's image size
      {"resnet18"},
      {"resnet34"},
      {"resnet50"},
      {"resnet101"},
      {"resnet152"},
      {"mobilenet_v2"},
      {"alexnet", 63},            // smaller: empty last max pooling
      {"inception_v3", 299},      // smaller: empty auxiliary classifier
      {"vgg16", 32},              // halves the image five times
      {"gpt-nano", 1, 128, 256},  // on tokens
      {"gpt-small", 1, 1024, 50257},
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
