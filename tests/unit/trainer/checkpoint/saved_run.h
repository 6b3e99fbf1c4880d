// Runs that are stored after some steps and continued by other models. Ranks are threads.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/fakes/thread_communicator.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/loop/run_state.h"

namespace scalelab::trainer {

// The state that the ranks of a run store.
struct Saved {
  NamedTensors shared;
  std::vector<NamedTensors> of_ranks;
  int64_t step = 0;

  // Returns the state in the form in which the store returns it to a rank.
  Checkpoint ReadBy(const Communicator& communicator) const {
    Checkpoint checkpoint{
        .step = step, .ranks = static_cast<int>(of_ranks.size()), .shared = shared, .of_ranks = of_ranks};
    if (checkpoint.ranks == communicator.size()) checkpoint.of_ranks = {of_ranks[communicator.rank()]};
    return checkpoint;
  }
};

inline NamedTensors Copies(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.detach().clone());
  return copies;
}

inline void OnRanksOrAlone(int ranks, const std::function<void(Communicator&)>& body) {
  if (ranks > 1) return OnRanks(ranks, body);
  SoloCommunicator solo;
  body(solo);
}

// One rank of a run. Each step has `global_batch` new samples.
class SavedRank {
 public:
  using BatchOf = std::function<Batch(const at::Tensor& samples)>;

  // Continues from `saved`, if there is one.
  SavedRank(const TrainingSpec& spec, Model& model, Communicator& communicator, BatchOf batch_of,
            const Saved* saved = nullptr, const MakeReplica& make_replica = {})
      : spec_(spec),
        communicator_(communicator),
        batch_of_(std::move(batch_of)),
        strategy_(MakePrepared(spec_, model, communicator, saved, make_replica)),
        step_(spec_, Precision::kFp32, at::kCPU, model, *strategy_, communicator),
        meter_(0, spec_.global_batch),
        state_(at::kCPU, model, step_, *strategy_, meter_, communicator, kStepsPerEpoch) {
    if (saved == nullptr) return;
    EpochSums epoch;
    RunTotals totals;
    state_.Restore(saved->ReadBy(communicator), 1, epoch, totals);
  }

  void Train(int first, int last) {
    const auto [place, count] = strategy_->SliceOf(communicator_.rank(), communicator_.size());
    const int64_t slice = place < 0 ? 0 : spec_.global_batch / count;
    for (int step = first; step < last; ++step) {
      const at::Tensor samples = at::arange(slice, at::kLong) + (step * spec_.global_batch + slice * place);
      StepRecord record{.global_samples = spec_.global_batch, .marks = StepMarks(at::kCPU)};
      step_.Run(batch_of_(samples), 0.05, record);
    }
  }
  void EndEpoch() { strategy_->EndEpoch(); }
  // Stores the state of this rank after `step` steps.
  void Save(Saved& saved, int64_t step) {
    NamedTensors shared = Copies(state_.Shared()), mine = Copies(state_.Mine({}, {}));
    if (communicator_.rank() == 0) {
      saved.step = step;
      saved.shared = std::move(shared);
      saved.of_ranks.resize(communicator_.size());
    }
    communicator_.Barrier();
    saved.of_ranks[communicator_.rank()] = std::move(mine);
    communicator_.Barrier();
  }

 private:
  static constexpr int64_t kStepsPerEpoch = 21;

  static std::unique_ptr<Strategy> MakePrepared(const TrainingSpec& spec, Model& model,
                                                Communicator& communicator, const Saved* saved,
                                                const MakeReplica& make_replica) {
    auto strategy = MakeStrategy(spec, model, communicator, make_replica);
    if (saved != nullptr) RunState::Prepare(saved->ReadBy(communicator), *strategy, communicator);
    return strategy;
  }

  const TrainingSpec spec_;  // step_ refers to it
  Communicator& communicator_;
  const BatchOf batch_of_;
  const std::unique_ptr<Strategy> strategy_;
  TrainStep step_;
  RunMeter meter_;
  RunState state_;
};

}  // namespace scalelab::trainer
