#include <cstdlib>
#include <set>

#include "worker/trainer/backends/communicators.h"
#include "worker/trainer/device/device.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/strategies/data_parallel_strategy.h"
#include "worker/trainer/strategies/ddp_strategy.h"
#include "worker/trainer/strategies/horovod_strategy.h"
#include "worker/trainer/strategies/local_sgd_strategy.h"
#include "worker/trainer/strategies/local_strategy.h"
#include "worker/trainer/strategies/parameter_server_strategy.h"
#include "worker/trainer/strategies/pipeline_strategy.h"
#include "worker/trainer/strategies/strategy.h"
#include "worker/trainer/strategies/tensor_strategy.h"
#include "worker/trainer/strategies/zero_strategy.h"

namespace scalelab::trainer {
namespace {

using Factory = std::unique_ptr<Strategy> (*)(const TrainingSpec&, Model&, Communicator&);

bool IsOnGpu(const Model& model) {
  const std::vector<at::Tensor> parameters = model.parameters();
  return !parameters.empty() && parameters.front().is_cuda();
}

DdpOptions DdpOptionsOf(const TrainingSpec& spec, const Model& model) {
  const std::string& form = spec.gradient_compression;
  return {.caps = {.first_bytes = spec.first_bucket_cap_mib << 20, .bytes = spec.bucket_cap_mib << 20},
          .overlap = true,
          .find_unused = spec.find_unused_parameters,
          .static_graph = spec.static_graph,
          .record_buckets = !spec.cuda_graph && (form == "none" || form == "fp16" || form == "bf16"),
          .copy_whole_buckets = IsOnGpu(model)};
}

std::unique_ptr<GradientReducer> MakeReducer(const TrainingSpec& spec, Communicator& communicator) {
  const std::string& form = spec.gradient_compression;
  if (form == "none") return MakeExactReducer(communicator);
  if (form == "fp16") return MakeCastReducer(communicator, at::kHalf);
  if (form == "bf16") return MakeCastReducer(communicator, at::kBFloat16);
  if (spec.precision == "amp-fp16") {
    throw TrainerError(
        "gradient_compression \"" + form +
        "\" adds errors to the gradients of the next step, whose scale precision \"amp-fp16\" may "
        "change: use precision \"amp-bf16\", or gradient_compression \"fp16\"");
  }
  using enum CompressionOptions::Form;
  return MakeCompressingReducer(communicator, {.form = form == "powersgd" ? kPowerSgd
                                                       : form == "top-k"  ? kTopK
                                                                          : kOneBit,
                                               .rank = spec.powersgd_rank,
                                               .ratio = spec.top_k_ratio,
                                               .start_step = spec.compression_start_step});
}

std::unique_ptr<Strategy> MakeDdp(const TrainingSpec& spec, Model& model, Communicator& communicator) {
  return std::make_unique<DdpStrategy>(model, communicator, DdpOptionsOf(spec, model),
                                       MakeReducer(spec, communicator));
}

std::unique_ptr<Strategy> MakeSerial(const TrainingSpec& spec, Model& model, Communicator& communicator) {
  DdpOptions options = DdpOptionsOf(spec, model);
  options.overlap = false;
  return std::make_unique<DdpStrategy>(model, communicator, options, MakeReducer(spec, communicator));
}

horovod::AllReduce AllReduceOf(const TrainingSpec& spec) {
  if (spec.all_reduce == "ring") return horovod::AllReduce::kRing;
  if (spec.all_reduce == "hierarchical") return horovod::AllReduce::kHierarchical;
  return horovod::AllReduce::kLibrary;
}

std::unique_ptr<Strategy> MakeHorovod(const TrainingSpec& spec, Model& model, Communicator& communicator) {
  if (spec.batch_norm == "sync") {
    throw TrainerError(
        "engine \"native/horovod\" cannot run batch_norm \"sync\", because its background thread uses the "
        "communicator during backward: set batch_norm to \"train\" or use native/ddp");
  }
  if (communicator.name() == "nccl" && spec.all_reduce != "library") {
    throw TrainerError(
        "all_reduce \"" + spec.all_reduce +
        "\" waits on the host for each message, which backend \"nccl\" does on the GPU: set all_reduce to "
        "\"library\", or backend to \"mpi\" or \"gloo\"");
  }
  const char* directory = std::getenv("SCALELAB_ATTEMPT_DIR");
  const std::string timeline =
      (directory == nullptr ? std::string(".") : std::string(directory)) + "/horovod-timeline.json";
  return std::make_unique<HorovodStrategy>(model, communicator,
                                           horovod::Options{.fusion_bytes = spec.fusion_threshold_mib << 20,
                                                            .cycle_seconds = spec.cycle_time_ms / 1e3,
                                                            .cache_capacity = spec.cache_capacity,
                                                            .fp16 = spec.gradient_compression == "fp16",
                                                            .autotune = spec.autotune,
                                                            .stall_warning_seconds = spec.stall_warning_s,
                                                            .timeline_path = spec.timeline ? timeline : "",
                                                            .all_reduce = AllReduceOf(spec),
                                                            .node = {},
                                                            .warn = {}},
                                           MakeControlChannel(spec, communicator));
}

template <int kStage>
std::unique_ptr<Strategy> MakeZero(const TrainingSpec& spec, Model& model, Communicator& communicator) {
  const std::string& form = spec.gradient_compression;
  const bool lossy = form != "none" && form != "fp16" && form != "bf16";
  if (lossy && kStage > 1) {
    throw TrainerError("engine \"" + spec.engine + "\" does not have gradient_compression \"" + form +
                       "\": use none, fp16 or bf16, or native/zero1");
  }
  return std::make_unique<ZeroStrategy>(model, communicator,
                                        ZeroOptions{.stage = kStage,
                                                    .bucket_bytes = spec.bucket_cap_mib << 20,
                                                    .find_unused = spec.find_unused_parameters,
                                                    .static_graph = spec.static_graph,
                                                    .wire_type = form == "fp16"   ? at::kHalf
                                                                 : form == "bf16" ? at::kBFloat16
                                                                                  : at::kFloat},
                                        lossy ? MakeReducer(spec, communicator) : nullptr);
}

std::unique_ptr<Strategy> MakeLocalSgd(const TrainingSpec& spec, Model& model, Communicator& communicator) {
  return std::make_unique<LocalSgdStrategy>(model, communicator,
                                            LocalSgdOptions{.steps = spec.local_steps,
                                                            .start_step = spec.local_start_step,
                                                            .slow_momentum = spec.slow_momentum});
}

std::unique_ptr<Strategy> MakePipeline(const TrainingSpec& spec, Model& model, Communicator& communicator) {
  if (spec.batch_norm == "sync") {
    throw TrainerError(
        "engine \"native/pipeline\" cannot run batch_norm \"sync\", because the ranks run different layers: "
        "set "
        "batch_norm to \"train\" or use native/ddp");
  }
  return std::make_unique<PipelineStrategy>(
      model, communicator,
      PipelineOptions{.stages = spec.pipeline_stages,
                      .schedule = pipeline::ParseSchedule(spec.pipeline_schedule),
                      .parts = spec.accumulation_steps,
                      .warmup = spec.warmup_steps});
}

std::unique_ptr<Strategy> MakeTensor(const TrainingSpec& spec, Model& model, Communicator& communicator) {
  if (spec.batch_norm == "sync") {
    throw TrainerError(
        "engine \"native/tensor\" cannot run batch_norm \"sync\", because the ranks of a group have the same "
        "samples: set batch_norm to \"train\" or use native/ddp");
  }
  return std::make_unique<TensorStrategy>(model, communicator, spec.tensor_ranks);
}

std::unique_ptr<Strategy> MakeParameterServer(const TrainingSpec& spec, Model& model,
                                              Communicator& communicator) {
  if (spec.batch_norm == "sync") {
    throw TrainerError(
        "engine \"native/parameter-server\" cannot run batch_norm \"sync\", because its servers do not "
        "train: "
        "set batch_norm to \"train\" or use native/ddp");
  }
  if (spec.precision == "amp-fp16") {
    throw TrainerError(
        "engine \"native/parameter-server\" does not scale losses on its servers: use precision "
        "\"amp-bf16\", or native/ddp");
  }
  return ParameterServerStrategy::Make(model, communicator,
                                       {.servers = static_cast<int>(spec.server_ranks),
                                        .consistency = spec.consistency == "async" ? Consistency::kAsync
                                                       : spec.consistency == "ssp" ? Consistency::kSsp
                                                                                   : Consistency::kSync,
                                        .staleness = spec.staleness});
}

std::unique_ptr<Strategy> MakeNone(const TrainingSpec&, Model& model, Communicator& communicator) {
  return std::make_unique<LocalStrategy>(model, communicator);
}

std::unique_ptr<Strategy> MakeDataParallel(const TrainingSpec& spec, Model& model,
                                           const Communicator& communicator,
                                           const MakeReplica& make_replica) {
  if (communicator.size() > 1) {
    throw TrainerError("engine \"" + spec.engine + "\" is one process, not " +
                       std::to_string(communicator.size()) + ": set ranks to 1, or use native/ddp");
  }
  if (spec.batch_norm == "sync") {
    throw TrainerError("engine \"" + spec.engine +
                       "\" cannot run batch_norm \"sync\": set batch_norm to \"train\" or use native/ddp");
  }
  const at::Device first = model.parameters().front().device();
  if (first.is_cuda() && first.index() + spec.replicas > VisibleGpus()) {
    throw TrainerError("replicas " + std::to_string(spec.replicas) + " need a GPU each, and there " +
                       (VisibleGpus() == 1 ? "is 1" : "are " + std::to_string(VisibleGpus())) +
                       ": set gpus_per_rank to the number of replicas");
  }
  DataParallelOptions options{.devices = {},
                              .cpu_threads = static_cast<int>(spec.cpus_per_rank),
                              .precision = ParsePrecision(spec.precision, first)};
  std::vector<std::shared_ptr<Model>> replicas;
  for (int i = 0; i < spec.replicas; ++i) {
    options.devices.push_back(
        first.is_cuda() ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(first.index() + i)) : first);
    if (i > 0) replicas.push_back(make_replica());
  }
  return std::make_unique<DataParallelStrategy>(model, std::move(replicas), options);
}

constexpr std::string_view kDataParallel = "native/data-parallel";

struct Entry {
  std::string_view engine;
  Factory make;
};

constexpr Entry kEngines[] = {{"native/ddp", MakeDdp},
                              {"native/horovod", MakeHorovod},
                              {"native/serial", MakeSerial},
                              {"native/none", MakeNone},
                              {"native/zero1", MakeZero<1>},
                              {"native/zero2", MakeZero<2>},
                              {"native/zero3", MakeZero<3>},
                              {"native/local-sgd", MakeLocalSgd},
                              {"native/pipeline", MakePipeline},
                              {"native/tensor", MakeTensor},
                              {"native/parameter-server", MakeParameterServer}};

}  // namespace

void GradientStrategy::Step(StepTask& task) {
  const int64_t last = task.parts() - 1;
  for (int64_t part = 0; part < last; ++part) {
    Accumulate(task.Forward(part));
    task.marks().Mark(&StepTimes::backward);
  }
  task.Measured(Backward(task.Forward(last)));
  task.Update();
}

std::vector<at::Tensor> GradientStrategy::Trained() { return model_.parameters(); }

double BytesOf(const std::vector<at::Tensor>& tensors) {
  std::set<const void*> counted;
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && counted.insert(tensor.storage().unsafeGetStorageImpl()).second)
      bytes += static_cast<double>(tensor.storage().nbytes());
  }
  return bytes;
}

int RanksOfASlice(const Strategy& strategy, int ranks) {
  int count = 0;
  for (int rank = 0; rank < ranks; ++rank) count += strategy.SliceOf(rank, ranks).index == 0 ? 1 : 0;
  return count;
}

void Strategy::Join() {
  throw TrainerError("this engine needs the same number of batches on all ranks: use native/horovod");
}

std::unique_ptr<Strategy> MakeStrategy(const TrainingSpec& spec, Model& model, Communicator& communicator,
                                       const MakeReplica& make_replica) {
  if (spec.engine == kDataParallel) return MakeDataParallel(spec, model, communicator, make_replica);
  std::string known(kDataParallel);
  for (const Entry& entry : kEngines) {
    // A single rank has no gradients to reduce, and needs no buckets. Speedups are relative to a single rank.
    if (entry.engine == spec.engine) {
      return (communicator.size() == 1 ? MakeNone : entry.make)(spec, model, communicator);
    }
    known += ", " + std::string(entry.engine);
  }
  throw TrainerError("unknown engine \"" + spec.engine + "\": this trainer has " + known);
}

}  // namespace scalelab::trainer
