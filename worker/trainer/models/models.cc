#include "worker/trainer/errors.h"
#include "worker/trainer/models/alexnet.h"
#include "worker/trainer/models/gpt.h"
#include "worker/trainer/models/inception_v3.h"
#include "worker/trainer/models/mobilenet_v2.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/models/resnet_cifar.h"
#include "worker/trainer/models/resnet_imagenet.h"
#include "worker/trainer/models/vgg.h"

namespace scalelab::trainer {
namespace {

using Factory = std::shared_ptr<Model> (*)(int classes, const BatchNormOptions&);

template <typename Network>
std::shared_ptr<Model> Make(int classes, const BatchNormOptions& batch_norm) {
  return std::make_shared<Network>(classes, batch_norm);
}

template <typename ResNet, int depth>
std::shared_ptr<Model> Make(int classes, const BatchNormOptions& batch_norm) {
  return std::make_shared<ResNet>(depth, classes, batch_norm);
}

template <const GptSize& size>
std::shared_ptr<Model> MakeGpt(int vocabulary, const BatchNormOptions&) {
  return std::make_shared<Gpt>(size, vocabulary);
}

// catalog/models.h has the same names.
struct Entry {
  std::string_view name;
  Factory make;
};

constexpr Entry kModels[] = {
    {"resnet8", Make<ResNetCifar, 8>},        {"resnet20", Make<ResNetCifar, 20>},
    {"resnet32", Make<ResNetCifar, 32>},      {"resnet44", Make<ResNetCifar, 44>},
    {"resnet56", Make<ResNetCifar, 56>},      {"resnet18", Make<ResNetImageNet, 18>},
    {"resnet34", Make<ResNetImageNet, 34>},   {"resnet50", Make<ResNetImageNet, 50>},
    {"resnet101", Make<ResNetImageNet, 101>}, {"resnet152", Make<ResNetImageNet, 152>},
    {"mobilenet_v2", Make<MobileNetV2>},      {"alexnet", Make<AlexNet>},
    {"inception_v3", Make<InceptionV3>},      {"vgg16", Make<Vgg16>},
    {"gpt-nano", MakeGpt<kGptNano>},          {"gpt-small", MakeGpt<kGptSmall>},
};

}  // namespace

std::shared_ptr<Model> MakeModel(const std::string& name, int classes, const BatchNormOptions& batch_norm) {
  std::string known;
  for (const Entry& entry : kModels) {
    if (entry.name == name) return entry.make(classes, batch_norm);
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw TrainerError("unknown model \"" + name + "\": use one of " + known);
}

int64_t CountParameters(const Model& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad()) count += parameter.numel();
  }
  return count;
}

}  // namespace scalelab::trainer
