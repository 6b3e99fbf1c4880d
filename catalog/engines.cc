#include "catalog/engines.h"

#include <algorithm>

namespace scalelab {
namespace {

using Names = Engine::Names;

template <typename... Groups>
constexpr unsigned Sum(Groups... groups) {
  return (static_cast<unsigned>(groups) | ...);
}

std::vector<Engine> MakeEngines() {
  using enum Engine::Program;
  using enum Engine::Synchronisation;
  constexpr auto kNone = Rendezvous::kNone, kMpi = Rendezvous::kMpi;
  constexpr auto kOptional = Engine::Gpus::kOptional, kRequired = Engine::Gpus::kRequired;
  constexpr auto kNoGpus = Engine::Gpus::kNever;
  constexpr unsigned kNothing = 0, kCompile = Sum(ParameterGroup::kCompile);
  constexpr unsigned kBuckets = Sum(ParameterGroup::kBuckets);
  constexpr unsigned kParts = Sum(ParameterGroup::kParts);
  constexpr unsigned kGraph = Sum(ParameterGroup::kGraph);
  constexpr unsigned kStep = kParts | kGraph | Sum(ParameterGroup::kStep),
                     kCheckpoint = Sum(ParameterGroup::kCheckpoint);
  constexpr unsigned kCompression = Sum(ParameterGroup::kCompression),
                     kLowRank = Sum(ParameterGroup::kLowRank);
  constexpr unsigned kFusion = Sum(ParameterGroup::kFusion) | kCompression;
  constexpr unsigned kOneBucketCap = kStep | kBuckets | kCompression | kCheckpoint;
  constexpr unsigned kErrors = kLowRank | Sum(ParameterGroup::kSparse);  // compression with error feedback
  constexpr unsigned kAllBuckets = kOneBucketCap | kErrors | Sum(ParameterGroup::kFirstBucket);
  constexpr unsigned kAllFusion = kStep | kFusion | kCheckpoint | Sum(ParameterGroup::kAllReduce);
  constexpr unsigned kLocal = Sum(ParameterGroup::kLocal);
  constexpr unsigned kAllLocal = kStep | kLocal | kCheckpoint | Sum(ParameterGroup::kSlowMomentum);
  constexpr unsigned kPipeline = Sum(ParameterGroup::kPipeline);
  constexpr unsigned kTensor = Sum(ParameterGroup::kTensor);
  constexpr unsigned kServers = kStep | kCheckpoint | Sum(ParameterGroup::kServers);
  constexpr unsigned kReplicas = kStep | kCheckpoint | Sum(ParameterGroup::kReplicas);
  constexpr unsigned kOwnProgram = kStep | kCheckpoint | Sum(ParameterGroup::kCustom);

  const Names all = {};
  const Names gloo = {"gloo", "nccl"}, mpi = {"mpi", "nccl"}, nccl = {"nccl"}, only_mpi = {"mpi"};
  const Names only_auto = {"auto"};  // the framework chooses its communication library
  const Names without_fp16 = {"fp32", "amp-bf16"}, unscaled = {"fp32", "tf32", "amp-bf16"};
  const Names half = {"none", "fp16"}, halves = {"none", "fp16", "bf16"};
  const Names own_batch = {"train"}, no_sync = {"train", "eval"};
  // The models that every adapter has, and those that all adapters but MXNet's have.
  const Names few = {"resnet8", "resnet20", "resnet32", "resnet44", "resnet56", "resnet50"};
  const Names many = {"resnet8",      "resnet20", "resnet32",     "resnet44",  "resnet56",
                      "resnet18",     "resnet34", "resnet50",     "resnet101", "resnet152",
                      "mobilenet_v2", "alexnet",  "inception_v3", "vgg16"};
  // The models that consist of blocks, which worker/trainer/models/divisible_model.h can divide among ranks.
  const Names divisible = {"resnet8",  "resnet20", "resnet32",  "resnet44",  "resnet56", "resnet18",
                           "resnet34", "resnet50", "resnet101", "resnet152", "gpt-nano", "gpt-small"};
  const Names resnets = {"resnet8",  "resnet20", "resnet32", "resnet44",  "resnet56",
                         "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"};
  // clang-format off
  return {
      {"native/ddp", kTrainer, "", "", kMpi, false, kOptional, all, all, all, all, kAllBuckets, kOverlapped},
      {"native/horovod", kTrainer, "", "", kMpi, false, kOptional, all, all, all, no_sync, kAllFusion, kOverlapped, half},
      {"native/serial", kTrainer, "", "", kMpi, false, kOptional, all, all, all, all, kAllBuckets, kAfterBackward},
      {"native/none", kTrainer, "", "", kMpi, false, kOptional, all, all, all, all, kStep | kCheckpoint, kNever},
      {"native/zero1", kTrainer, "", "", kMpi, false, kOptional, all, all, all, all, kOneBucketCap | kErrors},
      {"native/zero2", kTrainer, "", "", kMpi, false, kOptional, all, all, all, all, kOneBucketCap, kNotMeasured, halves},
      {"native/zero3", kTrainer, "", "", kMpi, false, kOptional, all, all, all, all, kOneBucketCap, kNotMeasured, halves},
      {"native/local-sgd", kTrainer, "", "", kMpi, false, kOptional, all, all, all, no_sync, kAllLocal, kNotMeasured, all,
       "averages parameters instead of gradients"},
      {"native/pipeline", kTrainer, "", "", kMpi, false, kOptional, all, all, divisible, no_sync, kStep | kPipeline | kCheckpoint},
      {"native/tensor", kTrainer, "", "", kMpi, false, kOptional, all, all, divisible, no_sync, kStep | kTensor | kCheckpoint},
      {"native/parameter-server", kTrainer, "", "", kMpi, false, kOptional, all, unscaled, all, no_sync, kServers},
      {"native/data-parallel", kTrainer, "", "", kMpi, false, kOptional, all, all, all, no_sync, kReplicas},
      {"pytorch/ddp", kAdapter, "pytorch", "pytorch_ddp.py", kNone, false, kOptional, gloo, all, many, own_batch, kBuckets | kCompile | kGraph | kCheckpoint},
      {"pytorch/fsdp", kAdapter, "pytorch2", "pytorch_fsdp.py", kNone, false, kOptional, gloo, all, many, own_batch, kCompile | kCheckpoint},
      {"pytorch/zero1", kAdapter, "pytorch", "pytorch_zero1.py", kNone, false, kOptional, gloo, all, many, own_batch, kBuckets | kCompile | kCheckpoint},
      {"pytorch/powersgd", kAdapter, "pytorch", "pytorch_powersgd.py", kNone, false, kOptional, gloo, unscaled, many, own_batch,
       kBuckets | kLowRank | kCheckpoint, kNotMeasured, all, "compresses gradients to matrices of low rank"},
      {"pytorch/local-sgd", kAdapter, "pytorch", "pytorch_local_sgd.py", kNone, false, kOptional, gloo, all, many, own_batch,
       kLocal | kCheckpoint, kNotMeasured, all, "averages parameters instead of gradients"},
      {"pytorch/pipeline", kAdapter, "pytorch2", "pytorch_pipeline.py", kNone, false, kOptional, gloo, unscaled, resnets, own_batch, kPipeline | kParts | kCheckpoint},
      {"pytorch/dp", kAdapter, "pytorch", "pytorch_dp.py", kNone, true, kRequired, only_auto, all, many, own_batch, kNothing},
      {"horovod/pytorch", kAdapter, "pytorch", "horovod_pytorch.py", kMpi, false, kOptional, mpi, all, many, own_batch, kFusion | kCheckpoint, kNotMeasured, half},
      {"horovod/tensorflow", kAdapter, "tensorflow", "horovod_tensorflow.py", kMpi, false, kOptional, mpi, all, many, own_batch, kFusion | kCheckpoint, kNotMeasured, half},
      {"horovod/mxnet", kAdapter, "mxnet", "horovod_mxnet.py", kMpi, false, kNoGpus, only_mpi, without_fp16, few, own_batch, kFusion | kCheckpoint, kNotMeasured, half},
      {"tensorflow/mirrored", kAdapter, "tensorflow", "tensorflow_mirrored.py", kNone, true, kOptional, nccl, all, many, own_batch, kCheckpoint},
      {"tensorflow/multiworker-mirrored", kAdapter, "tensorflow", "tensorflow_multiworker.py", kNone, false, kOptional, nccl, all, many, own_batch, kCheckpoint},
      {"keras/tensorflow", kAdapter, "keras-tensorflow", "keras_tensorflow.py", kNone, false, kOptional, nccl, all, many, own_batch, kCheckpoint},
      {"keras/jax", kAdapter, "keras-jax", "keras_jax.py", kNone, false, kOptional, gloo, all, many, own_batch, kCheckpoint},
      {"keras/pytorch", kAdapter, "pytorch2", "keras_pytorch.py", kNone, false, kOptional, gloo, all, many, own_batch, kBuckets | kCompile | kCheckpoint},
      {"mxnet/kvstore", kAdapter, "mxnet", "mxnet_kvstore.py", kNone, false, kNoGpus, only_auto, without_fp16, few, own_batch, kCheckpoint},
      {"custom", kCommand, "", "", kNone, false, kOptional, all, all, all, all, kOwnProgram},
  };
  // clang-format on
}

const Engine& EngineWith(Engine::Synchronisation synchronisation) {
  return *std::find_if(Engines().begin(), Engines().end(),
                       [&](const Engine& engine) { return engine.synchronisation == synchronisation; });
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

bool RunsTrainer(absl::string_view engine) {
  const Engine* const found = FindEngine(engine);
  return found != nullptr && found->program == Engine::Program::kTrainer;
}

bool RunsOwnProgram(absl::string_view name) {
  const Engine* engine = FindEngine(name);
  return engine != nullptr && engine->program == Engine::Program::kCommand;
}

bool CompressesWithErrors(absl::string_view compression) {
  return compression == "powersgd" || compression == "top-k" || compression == "onebit";
}

absl::string_view WhyDiffersByDesign(const Engine& engine, absl::string_view compression,
                                     absl::string_view consistency) {
  if (!engine.differs.empty()) return engine.differs;
  if (engine.Reads(ParameterGroup::kCompression) && CompressesWithErrors(compression))
    return "compresses gradients, and adds what it leaves out to the next step";
  if (engine.Reads(ParameterGroup::kServers) && (consistency == "async" || consistency == "ssp"))
    return "updates parameters with gradients of older ones";
  return "";
}

const Engine& UnsynchronisedEngine() { return EngineWith(Engine::Synchronisation::kNever); }

const Engine& SerialEngine() { return EngineWith(Engine::Synchronisation::kAfterBackward); }

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
    if (!engine.environment.empty() &&
        std::find(names.begin(), names.end(), engine.environment) == names.end())
      names.push_back(engine.environment);
  }
  return names;
}

}  // namespace scalelab
