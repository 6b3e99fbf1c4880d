#include <cstdlib>

#include "worker/trainer/errors.h"
#include "worker/trainer/strategies/ddp_strategy.h"
#include "worker/trainer/strategies/horovod_strategy.h"
#include "worker/trainer/strategies/local_strategy.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {
namespace {

using Factory = std::unique_ptr<Strategy> (*)(const TrainingSpec&, Model&, Communicator&);

DdpOptions DdpOptionsOf(const TrainingSpec& spec) {
  return {.caps = {.first_bytes = spec.first_bucket_cap_mib << 20, .bytes = spec.bucket_cap_mib << 20},
          .overlap = true,
          .find_unused = spec.find_unused_parameters,
          .static_graph = spec.static_graph};
}

std::unique_ptr<Strategy> MakeDdp(const TrainingSpec& spec, Model& model, Communicator& communicator) {
  return std::make_unique<DdpStrategy>(model, communicator, DdpOptionsOf(spec));
}

std::unique_ptr<Strategy> MakeSerial(const TrainingSpec& spec, Model& model, Communicator& communicator) {
  DdpOptions options = DdpOptionsOf(spec);
  options.overlap = false;
  return std::make_unique<DdpStrategy>(model, communicator, options);
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
                                                            .warn = {}});
}

std::unique_ptr<Strategy> MakeNone(const TrainingSpec&, Model& model, Communicator& communicator) {
  return std::make_unique<LocalStrategy>(model, communicator);
}

struct Entry {
  std::string_view engine;
  Factory make;
};

constexpr Entry kEngines[] = {{"native/ddp", MakeDdp},
                              {"native/horovod", MakeHorovod},
                              {"native/serial", MakeSerial},
                              {"native/none", MakeNone}};

}  // namespace

void Strategy::Join() {
  throw TrainerError("this engine needs the same number of batches on all ranks: use native/horovod");
}

std::unique_ptr<Strategy> MakeStrategy(const TrainingSpec& spec, Model& model, Communicator& communicator) {
  std::string known;
  for (const Entry& entry : kEngines) {
    // A single rank has nothing to reduce and needs no buckets. It is the baseline of every speedup.
    if (entry.engine == spec.engine) {
      return (communicator.size() == 1 ? MakeNone : entry.make)(spec, model, communicator);
    }
    known += (known.empty() ? "" : ", ") + std::string(entry.engine);
  }
  throw TrainerError("unknown engine \"" + spec.engine + "\": this trainer has " + known);
}

}  // namespace scalelab::trainer
