#include "worker/trainer/strategies/tensor_strategy.h"

#include <limits>
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

// All ranks take the parts and the other parameters of the first group, so that they evaluate the very same model.
void TensorStrategy::Gather() {
  if (!std::exchange(is_divided_, false)) return;
  for (const Divided& divided : divided_) {
    const at::Tensor& parameter = divided.division.parameter;
    const at::Tensor whole =
        at::empty(divided.shape, parameter.options().requires_grad(false), divided.format);
    for (int rank = 0; rank < ranks_; ++rank) {
      const at::Tensor part = rank == part_ ? parameter.detach() : NewPart(divided, rank);
      communicator_.Broadcast(part, rank);
      CopyToWhole(divided.division, whole, part, rank, ranks_);
    }
    parameter.set_data(whole);
  }
  for (const at::Tensor& parameter : model_.parameters()) communicator_.Broadcast(parameter.detach(), 0);
}

void TensorStrategy::MakeGradients() {
  for (const at::Tensor& parameter : model_.parameters()) {
    if (parameter.requires_grad()) parameters_.push_back(parameter);
  }
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  for (const std::vector<int>& indices :
       AssignBuckets(parameters_, ReverseOrder(parameters_.size()), {kNoLimit, kNoLimit}))
    gradients_.push_back(MakeBucket(parameters_, indices, 0));
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
  for (const GradientBucket& bucket : gradients_) {
    bucket.flat.zero_();
    for (size_t k = 0; k < bucket.views.size(); ++k)
      parameters_[bucket.parameters[k]].mutable_grad() = bucket.views[k];
  }
  for (int64_t part = 0; part < task.parts(); ++part) {
    task.Forward(part).backward();
    marks.Mark(&StepTimes::backward);
  }
  model_.layer_ranks().Join();  // `marks` is that of this step
  BackwardCost cost;
  cost.computed = Moment(parameters_.front().device());
  cost.bytes = model_.layer_ranks().TakeBytes() + AverageOverGroups();
  task.Measured(std::move(cost));
  task.Update();
}

// Returns the number of bytes that were communicated.
int64_t TensorStrategy::AverageOverGroups() {
  int64_t bytes = 0;
  if (!equals_) return bytes;
  for (const GradientBucket& bucket : gradients_) {
    equals_->AllReduce(bucket.flat, ReduceOp::kAverage);
    bytes += static_cast<int64_t>(bucket.flat.nbytes());
  }
  return bytes;
}

void TensorStrategy::EndEpoch() { Gather(); }

void TensorStrategy::SyncBuffers() {
  for (const at::Tensor& buffer : model_.buffers()) communicator_.Broadcast(buffer, 0);
}

void TensorStrategy::AppendMetrics(std::vector<Metric>& metrics) const {
  double gradients = 0;
  for (const GradientBucket& bucket : gradients_) gradients += static_cast<double>(bucket.flat.nbytes());
  metrics.insert(metrics.end(), {{"memory/parameters_bytes", part_bytes_},
                                 {"memory/gradients_bytes", gradients},
                                 {"memory/optimizer_bytes", part_bytes_}});
}

}  // namespace scalelab::trainer
