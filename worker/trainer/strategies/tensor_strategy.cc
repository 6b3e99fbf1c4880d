#include "worker/trainer/strategies/tensor_strategy.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

DivisibleModel& WithDivisibleLayers(Model& model) {
  if (auto* divisible = dynamic_cast<DivisibleModel*>(&model)) return *divisible;
  throw TrainerError(
      "engine \"native/tensor\" cannot divide the layers of this model: use a ResNet or a gpt, or "
      "native/ddp");
}

// Returns the number of ranks that divide the model.
int CheckedRanks(int64_t asked, const DivisibleModel& model, int all) {
  const int64_t ranks = asked == 0 ? all : asked;
  if (all % ranks != 0) {
    throw TrainerError("tensor_ranks is " + std::to_string(ranks) + ", which does not divide the run's " +
                       std::to_string(all) + " ranks: set it to a divisor of the number of ranks");
  }
  for (const Division& division : model.Divisions()) {
    const std::string units = std::to_string(division.units) + " " + division.unit;
    if (division.equally && division.units % ranks != 0) {
      throw TrainerError("a layer of the model has " + units + ", which " + std::to_string(ranks) +
                         " ranks cannot divide equally: set tensor_ranks to a divisor of " +
                         std::to_string(division.units));
    }
    if (division.units < ranks) {
      throw TrainerError("a layer of the model has " + units + ", too few for " + std::to_string(ranks) +
                         " ranks: set tensor_ranks to at most " + std::to_string(division.units));
    }
  }
  return static_cast<int>(ranks);
}

}  // namespace

TensorStrategy::TensorStrategy(Model& model, Communicator& communicator, int64_t ranks)
    : model_(WithDivisibleLayers(model)),
      communicator_(communicator),
      ranks_(CheckedRanks(ranks, model_, communicator.size())),
      part_(communicator.rank() % ranks_) {
  for (const at::Tensor& parameter : model.parameters()) communicator.Broadcast(parameter.detach(), 0);
  SyncBuffers();
  if (communicator.size() > ranks_) {
    group_ = communicator.Split(communicator.rank() / ranks_);
    equals_ = communicator.Split(part_);
  }
  for (Division& division : model_.Divisions()) {
    std::vector<int64_t> shape = division.parameter.sizes().vec();
    const at::MemoryFormat format = division.parameter.suggest_memory_format();
    divided_.push_back({std::move(division), std::move(shape), format});
  }
  Divide();
  MakeGradients();
}

at::Tensor TensorStrategy::NewPart(const Divided& divided, int rank) const {
  return at::empty(PartShape(divided.division, divided.shape, rank, ranks_),
                   divided.division.parameter.options().requires_grad(false), divided.format);
}

void TensorStrategy::Divide() {
  if (is_divided_) return;
  is_divided_ = true;
  for (const Divided& divided : divided_) {
    const at::Tensor& parameter = divided.division.parameter;
    const at::Tensor part = NewPart(divided, part_);
    CopyPart(divided.division, part, parameter.detach(), part_, ranks_);
    parameter.set_data(part);
  }
}

// All ranks receive the parts and the other parameters from the first group, so that they evaluate exactly
// the same model.
void TensorStrategy::Gather() {
  if (!std::exchange(is_divided_, false)) return;
  Communicator& group = group_ ? *group_ : communicator_;
  for (const Divided& divided : divided_) {
    const at::Tensor& parameter = divided.division.parameter;
    const at::Tensor whole =
        at::empty(divided.shape, parameter.options().requires_grad(false), divided.format);
    std::vector<at::Tensor> like;
    std::vector<int64_t> counts;
    for (int rank = 0; rank < ranks_; ++rank) {
      like.push_back(NewPart(divided, rank));
      counts.push_back(like.back().numel());
    }
    const at::Tensor parts = at::empty({whole.numel()}, whole.options());
    group.AllGatherV(parts, parameter.detach(), counts);
    int64_t first = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      CopyToWhole(divided.division, whole, parts.as_strided(like[rank].sizes(), like[rank].strides(), first),
                  rank, ranks_);
      first += counts[rank];
    }
    parameter.set_data(whole);
  }
  for (const at::Tensor& parameter : model_.parameters()) communicator_.Broadcast(parameter.detach(), 0);
}

void TensorStrategy::MakeGradients() {
  for (const at::Tensor& parameter : model_.parameters()) {
    if (parameter.requires_grad()) parameters_.push_back(parameter);
  }
  gradients_ = std::make_unique<GroupGradients>(parameters_, equals_.get());
  // All ranks of a group have the same gradients of parameters that are not divided.
  for (size_t i = 0; part_ > 0 && i < parameters_.size(); ++i) {
    if (FindDivided(parameters_[i]) == nullptr) gradients_->CountElsewhere(i);
  }
  for (const at::Tensor& parameter : parameters_)
    part_bytes_ += static_cast<double>(parameter.storage().nbytes());
}

void TensorStrategy::Step(StepTask& task) {
  Divide();
  StepMarks& marks = task.marks();
  model_.layer_ranks().Divide(group_ ? *group_ : communicator_, [&marks](LayerTime time) {
    marks.Mark(time == LayerTime::kForward    ? &StepTimes::forward
               : time == LayerTime::kBackward ? &StepTimes::backward
                                              : &StepTimes::comm_exposed);
  });
  gradients_->BeginStep();
  for (int64_t part = 0; part < task.parts(); ++part) {
    task.Forward(part).backward();
    marks.Mark(&StepTimes::backward);
  }
  model_.layer_ranks().Join();  // `marks` is valid in this step only
  BackwardCost cost;
  cost.computed = DeviceEvent(parameters_.front().device());
  cost.bytes = model_.layer_ranks().TakeBytes() + gradients_->Average();
  const at::Device device = parameters_.front().device();
  if (const at::Tensor squares = gradients_->Squares(communicator_, device); squares.defined()) {
    cost.rank_square = squares[0];
    cost.mean_square = squares[1];
  }
  task.Measured(std::move(cost));
  task.Update();
}

void TensorStrategy::EndEpoch() { Gather(); }

const TensorStrategy::Divided* TensorStrategy::FindDivided(const at::Tensor& parameter) const {
  const auto found = std::ranges::find_if(
      divided_, [&](const Divided& divided) { return divided.division.parameter.is_same(parameter); });
  return found == divided_.end() ? nullptr : &*found;
}

at::Tensor TensorStrategy::Whole(const at::Tensor& parameter) const {
  const Divided* const divided = FindDivided(parameter);
  if (divided == nullptr) return parameter;
  return at::empty(divided->shape, at::TensorOptions(at::kMeta).dtype(parameter.scalar_type()),
                   divided->format);
}

// The first group stores parts, and rank 0 stores all other parameters.
std::vector<Shard> TensorStrategy::Shards() {
  Divide();
  std::vector<Shard> shards;
  for (const at::Tensor& parameter : parameters_) {
    Shard& shard = shards.emplace_back();
    shard.parameter = static_cast<int>(shards.size()) - 1;
    shard.value = parameter.detach();
    at::Tensor place = parameter;
    if (const Divided* const divided = FindDivided(parameter)) {
      shard.value = UnitsInPart(divided->division, shard.value, part_, ranks_);
      place = UnitsInWhole(divided->division, Whole(parameter), part_, ranks_);
      shard.first = place.storage_offset();
      shard.stored = communicator_.rank() < ranks_;
    } else {
      shard.stored = communicator_.rank() == 0;
    }
    shard.strides = place.strides().vec();
  }
  return shards;
}

void TensorStrategy::ShareShards(const std::vector<at::Tensor>& of_shards) {
  for (size_t i = 0; i < of_shards.size(); ++i) {
    if (FindDivided(parameters_[i]) == nullptr) {
      communicator_.Broadcast(of_shards[i], 0);
    } else if (equals_) {
      equals_->Broadcast(of_shards[i], 0);
    }
  }
}

void TensorStrategy::SyncBuffers() {
  for (const at::Tensor& buffer : model_.buffers()) communicator_.Broadcast(buffer, 0);
}

// Between EndEpoch and the next step, the rank also has the parts of the other ranks.
ModelMemory TensorStrategy::Memory(const ModelMemory& found) const {
  return {.parameters = part_bytes_,
          .gradients = static_cast<double>(gradients_->bytes()),
          .optimizer = found.optimizer};
}

ModelMemory TensorStrategy::MemoryByFormula(double) const {
  double bytes = 0;
  for (const at::Tensor& parameter : parameters_) {
    const Divided* const divided = FindDivided(parameter);
    int64_t elements = parameter.numel();
    if (divided != nullptr) {
      const std::vector<int64_t> part = PartShape(divided->division, divided->shape, part_, ranks_);
      elements = std::accumulate(part.begin(), part.end(), int64_t{1}, std::multiplies<>());
    }
    bytes += static_cast<double>(elements * static_cast<int64_t>(parameter.element_size()));
  }
  return {bytes, bytes, bytes};
}

}  // namespace scalelab::trainer
