#include "worker/trainer/loop/run_state.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>

#include "worker/trainer/data/random.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {
namespace {

constexpr std::string_view kStrategy = "strategy/", kStepsPerEpoch = "steps_per_epoch";

// Checkpoints store these structs as vectors of doubles, in the order of their members.
static_assert(sizeof(EpochSums) % sizeof(double) == 0 && sizeof(RunTotals) % sizeof(double) == 0);

template <typename Struct>
at::Tensor NumbersOf(const Struct& from) {
  const at::Tensor numbers = at::empty({int64_t{sizeof(Struct) / sizeof(double)}}, at::kDouble);
  std::memcpy(numbers.data_ptr(), &from, sizeof(Struct));
  return numbers;
}

at::Tensor NumbersOf(const std::vector<double>& from) {
  const at::Tensor numbers = at::empty({std::ssize(from)}, at::kDouble);
  std::copy(from.begin(), from.end(), static_cast<double*>(numbers.data_ptr()));
  return numbers;
}

template <typename Struct>
Struct StructOf(const at::Tensor& numbers, std::string_view name) {
  Struct result;
  if (numbers.nbytes() != sizeof(Struct)) {
    throw TrainerError(
        "tensor \"" + std::string(name) +
        "\" of the checkpoint has another size: another version wrote it; remove the checkpoints "
        "of the run");
  }
  std::memcpy(&result, numbers.data_ptr(), sizeof(Struct));
  return result;
}

NamedTensors Buffers(const Model& model) {
  NamedTensors buffers;
  for (const auto& named : model.named_buffers())
    buffers.emplace_back("buffer/" + named.key(), named.value());
  return buffers;
}

at::Tensor RandomState(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void SetRandomState(at::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// Throws if the run that wrote the checkpoint had another number of steps per epoch. Then the epoch, and the
// position in it, cannot be computed from the number of steps.
void CheckStepsPerEpoch(const Checkpoint& checkpoint, int64_t steps_per_epoch) {
  const auto found = std::ranges::find(checkpoint.shared, kStepsPerEpoch, &NamedTensors::value_type::first);
  if (found == checkpoint.shared.end()) return;  // an older version wrote the checkpoint
  const int64_t theirs = found->second.item<int64_t>();
  if (theirs == steps_per_epoch) return;
  throw TrainerError("the checkpoint was written with " + std::to_string(theirs) +
                     " steps per epoch, this run has " + std::to_string(steps_per_epoch) + ": use " +
                     std::to_string(checkpoint.ranks) +
                     " ranks and the same training set, or remove the checkpoints of the run");
}

}  // namespace

NamedTensors RunState::Shared() const {
  NamedTensors shared = weights_.Shared();
  shared.emplace_back("copies", at::full({1}, Copies(), at::kDouble));
  shared.emplace_back(kStepsPerEpoch, at::full({1}, steps_per_epoch_, at::kLong));
  return shared;
}

NamedTensors RunState::Mine(const EpochSums& epoch, const RunTotals& totals) const {
  const NamedTensors of_strategy = strategy_.State();  // first, because State may write into buffers
  NamedTensors tensors = weights_.Mine();
  for (auto& named : Buffers(model_)) tensors.push_back(std::move(named));
  AppendBelow(tensors, kStrategy, of_strategy);
  tensors.emplace_back("random/cpu", RandomState(at::kCPU));
  if (device_.is_cuda()) tensors.emplace_back("random/cuda", RandomState(device_));
  tensors.emplace_back("epoch", NumbersOf(epoch));
  tensors.emplace_back("totals", NumbersOf(totals));
  tensors.emplace_back("meter", NumbersOf(meter_.State()));
  return tensors;
}

void RunState::Prepare(const Checkpoint& checkpoint, Strategy& strategy, const Communicator& communicator) {
  if (checkpoint.ranks == communicator.size())
    strategy.PrepareFor(Below(checkpoint.of_ranks.at(0), kStrategy));
}

void RunState::Restore(const Checkpoint& checkpoint, uint64_t seed, EpochSums& epoch, RunTotals& totals) {
  CheckStepsPerEpoch(checkpoint, steps_per_epoch_);
  const bool same = checkpoint.ranks == communicator_.size();
  const NamedTensors& mine = checkpoint.of_ranks.at(0);
  weights_.Restore(checkpoint, same);
  Assign(mine, Buffers(model_));
  std::vector<NamedTensors> states;
  for (const NamedTensors& of_rank : checkpoint.of_ranks) states.push_back(Below(of_rank, kStrategy));
  strategy_.LoadState(states);

  totals = StructOf<RunTotals>(Find(mine, "totals"), "totals");
  epoch = StructOf<EpochSums>(Find(mine, "epoch"), "epoch");
  if (same) {
    SetRandomState(at::kCPU, Find(mine, "random/cpu"));
    if (device_.is_cuda()) SetRandomState(device_, Find(mine, "random/cuda"));
    const at::Tensor& meter = Find(mine, "meter");
    const auto* first = static_cast<const double*>(meter.data_ptr());
    return meter_.Continue(checkpoint.step, {first, first + meter.numel()});
  }
  meter_.Continue(checkpoint.step, {});
  // Use keys that no generator of the run has used yet. The keys of samples start with the epoch, which is a
  // much smaller number.
  Random random(seed, UINT64_MAX - static_cast<uint64_t>(checkpoint.step),
                static_cast<uint64_t>(communicator_.rank()));
  at::manual_seed(random.Next());
  // Rank 0 continues with the sums of all ranks that wrote the checkpoint. The other ranks continue with 0.
  for (size_t rank = 1; rank < checkpoint.of_ranks.size(); ++rank) {
    const auto sums = StructOf<EpochSums>(Find(checkpoint.of_ranks[rank], "epoch"), "epoch");
    epoch.loss += sums.loss, epoch.correct += sums.correct, epoch.samples += sums.samples;
  }
  const double share =
      communicator_.rank() != 0 ? 0 : Copies() / Find(checkpoint.shared, "copies").item<double>();
  epoch.loss *= share, epoch.correct *= share, epoch.samples *= share;
}

}  // namespace scalelab::trainer
