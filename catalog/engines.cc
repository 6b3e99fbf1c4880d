#include "catalog/engines.h"

#include <algorithm>

namespace scalelab {
namespace {

using Names = Engine::Names;

std::vector<Engine> MakeEngines() {
  constexpr auto kAlone = Engine::Meeting::kByItself;
  constexpr auto kMpi = Engine::Meeting::kMpi;
  constexpr auto kMay = Engine::Gpus::kMay;
  constexpr auto kMust = Engine::Gpus::kMust;
  const Names gloo = {"gloo", "nccl"}, mpi = {"mpi", "nccl"}, nccl = {"nccl"};
  const Names own = {"auto"};  // the framework has one way
  const Names all = {"fp32", "tf32", "amp-bf16", "amp-fp16"}, of_cpu = {"fp32", "amp-bf16"};
  // What every adapter has, and what all but those of MXNet have.
  const Names some = {"resnet20", "resnet32", "resnet44", "resnet56", "resnet50"};
  const Names many = {"resnet20", "resnet32",     "resnet44",  "resnet56",  "resnet18",
                      "resnet34", "resnet50",     "resnet101", "resnet152", "mobilenet_v2",
                      "alexnet",  "inception_v3", "vgg16"};

  std::vector<Engine> engines = {
      {"native/ddp", "", ""}, {"native/horovod", "", ""}, {"native/serial", "", ""}, {"native/none", "", ""}};
  const Engine adapters[] = {
      {"pytorch/ddp", "pytorch", "pytorch_ddp.py", kAlone, false, kMay, gloo, all, many},
      {"pytorch/fsdp", "pytorch2", "pytorch_fsdp.py", kAlone, false, kMay, gloo, all, many},
      {"pytorch/dp", "pytorch", "pytorch_dp.py", kAlone, true, kMust, own, all, many},
      {"horovod/pytorch", "pytorch", "horovod_pytorch.py", kMpi, false, kMay, mpi, all, many},
      {"horovod/tensorflow", "tensorflow", "horovod_tensorflow.py", kMpi, false, kMay, mpi, all, many},
      {"horovod/mxnet", "mxnet", "horovod_mxnet.py", kMpi, false, kMay, mpi, of_cpu, some},
      {"tensorflow/mirrored", "tensorflow", "tensorflow_mirrored.py", kAlone, true, kMay, nccl, all, many},
      {"tensorflow/multiworker-mirrored", "tensorflow", "tensorflow_multiworker.py", kAlone, false, kMay,
       nccl, all, many},
      {"keras/tensorflow", "keras-tensorflow", "keras_tensorflow.py", kAlone, false, kMay, nccl, all, many},
      {"keras/jax", "keras-jax", "keras_jax.py", kAlone, false, kMay, gloo, all, many},
      {"keras/pytorch", "pytorch2", "keras_pytorch.py", kAlone, false, kMay, gloo, all, many},
      {"mxnet/kvstore", "mxnet", "mxnet_kvstore.py", kAlone, false, kMay, own, of_cpu, some},
  };
  for (const Engine& adapter : adapters) {
    engines.push_back(adapter);
    engines.back().batch_norms = {"train"};  // a statistic of each rank by its own batch
  }
  engines.push_back({"custom", "", ""});
  return engines;
}

}  // namespace

const std::vector<Engine>& Engines() {
  static const auto& engines = *new std::vector<Engine>(MakeEngines());
  return engines;
}

const Engine* FindEngine(absl::string_view name) {
  for (const Engine& engine : Engines()) {
    if (engine.name == name) return &engine;
  }
  return nullptr;
}

const std::vector<absl::string_view>& EngineNames() {
  static const auto& names = *new std::vector<absl::string_view>([] {
    std::vector<absl::string_view> all;
    for (const Engine& engine : Engines()) all.push_back(engine.name);
    return all;
  }());
  return names;
}

std::vector<absl::string_view> EnvironmentNames() {
  std::vector<absl::string_view> names;
  for (const Engine& engine : Engines()) {
    if (HasAdapter(engine) && std::find(names.begin(), names.end(), engine.environment) == names.end())
      names.push_back(engine.environment);
  }
  return names;
}

}  // namespace scalelab
