#include "worker/trainer/errors.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/models/resnet_cifar.h"

namespace scalelab::trainer {
namespace {

using Factory = std::shared_ptr<Model> (*)(int classes, const BatchNormOptions&);

template <int depth>
std::shared_ptr<Model> MakeResNet(int classes, const BatchNormOptions& batch_norm) {
  return std::make_shared<ResNetCifar>(depth, classes, batch_norm);
}

struct Entry {
  std::string_view name;
  Factory make;
};

constexpr Entry kModels[] = {{"resnet20", MakeResNet<20>},
                             {"resnet32", MakeResNet<32>},
                             {"resnet44", MakeResNet<44>},
                             {"resnet56", MakeResNet<56>}};

}  // namespace

std::shared_ptr<Model> MakeModel(const std::string& name, int classes, const BatchNormOptions& batch_norm) {
  std::string known;
  for (const Entry& entry : kModels) {
    if (entry.name == name) return entry.make(classes, batch_norm);
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw TrainerError("this trainer has no model \"" + name + "\": it has " + known);
}

int64_t CountParameters(const Model& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad()) count += parameter.numel();
  }
  return count;
}

}  // namespace scalelab::trainer
