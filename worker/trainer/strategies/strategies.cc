#include "worker/trainer/errors.h"
#include "worker/trainer/strategies/ddp_strategy.h"
#include "worker/trainer/strategies/local_strategy.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {
namespace {

using Factory = std::unique_ptr<Strategy> (*)(const TrainingSpec&, Model&, Communicator&);

std::unique_ptr<Strategy> MakeDdp(const TrainingSpec& spec, Model& model, Communicator& communicator) {
  // One rank has nothing to reduce and should not pay for buckets: it is the base case of every speedup.
  if (communicator.size() == 1) return std::make_unique<LocalStrategy>(model);
  return std::make_unique<DdpStrategy>(model, communicator, spec.bucket_cap_mib << 20);
}

struct Entry {
  std::string_view engine;
  Factory make;
};

constexpr Entry kEngines[] = {{"native/ddp", MakeDdp}};

}  // namespace

std::unique_ptr<Strategy> MakeStrategy(const TrainingSpec& spec, Model& model, Communicator& communicator) {
  std::string known;
  for (const Entry& entry : kEngines) {
    if (entry.engine == spec.engine) return entry.make(spec, model, communicator);
    known += (known.empty() ? "" : ", ") + std::string(entry.engine);
  }
  throw TrainerError("this trainer has no engine \"" + spec.engine + "\": it has " + known);
}

}  // namespace scalelab::trainer
