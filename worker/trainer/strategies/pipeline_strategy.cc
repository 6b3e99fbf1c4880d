#include "worker/trainer/strategies/pipeline_strategy.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using pipeline::PassesOf;

DivisibleModel& Divisible(Model& model) {
  if (auto* divisible = dynamic_cast<DivisibleModel*>(&model)) return *divisible;
  throw TrainerError(
      "engine \"native/pipeline\" cannot divide this model into stages: use a ResNet or a gpt, or "
      "native/ddp");
}

int StagesOf(const PipelineOptions& options, const DivisibleModel& model, int ranks) {
  const int64_t stages = options.stages == 0 ? ranks : options.stages, blocks = std::ssize(model.blocks());
  if (ranks % stages != 0) {
    throw TrainerError("pipeline_stages is " + std::to_string(stages) + ", which does not divide the run's " +
                       std::to_string(ranks) + " ranks: set it to a divisor of the number of ranks");
  }
  if (stages > blocks) {
    throw TrainerError("the model has " + std::to_string(blocks) + " blocks, too few for " +
                       std::to_string(stages) + " stages: set pipeline_stages to at most " +
                       std::to_string(blocks));
  }
  return static_cast<int>(stages);
}

// Returns the seconds that forward and backward of each block take on this rank. Leaves the model as it was.
std::vector<double> MeasureBlocks(const DivisibleModel& model, at::Device device) {
  constexpr int kSamples = 2, kRounds = 3;  // the first round is slower
  std::vector<at::Tensor> buffers, saved;
  for (const at::Tensor& buffer : model.buffers()) {
    buffers.push_back(buffer);
    saved.push_back(buffer.clone());
  }
  std::vector<int64_t> shape = model.Example().sizes().vec();
  shape[0] = kSamples;
  std::vector<double> seconds(model.blocks().size(), std::numeric_limits<double>::infinity());
  for (int round = 0; round < kRounds; ++round) {
    at::Tensor x = model.Example().expand(shape).contiguous().to(device);
    if (x.is_floating_point()) x = x.to(model.parameters().front().scalar_type());
    for (size_t i = 0; i < seconds.size(); ++i) {
      if (x.is_floating_point()) x = x.detach().requires_grad_(true);
      const Moment begin(device);
      const at::Tensor y = model.blocks()[i].forward(x);
      y.backward(at::ones_like(y));
      const Moment end(device);
      end.Wait();
      seconds[i] = std::min(seconds[i], end.SecondsSince(begin));
      x = y;
    }
  }
  for (at::Tensor& parameter : model.parameters()) parameter.mutable_grad().reset();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(saved[i]);
  return seconds;
}

// With 1f1b, a stage does not run ahead of its neighbours by more messages than this.
size_t MostInFlight(pipeline::Schedule schedule) {
  return schedule == pipeline::Schedule::k1f1b ? 2 : std::numeric_limits<size_t>::max();
}

at::Device DeviceOf(const Model& model) { return model.parameters().front().device(); }

// Returns the tensors of `lists`, each once.
std::vector<at::Tensor> Distinct(const std::vector<std::vector<at::Tensor>>& lists) {
  std::set<const void*> seen;
  std::vector<at::Tensor> distinct;
  for (const std::vector<at::Tensor>& list : lists) {
    for (const at::Tensor& tensor : list) {
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) distinct.push_back(tensor);
    }
  }
  return distinct;
}

}  // namespace

PipelineStrategy::PipelineStrategy(Model& model, Communicator& communicator, const PipelineOptions& options)
    : model_(Divisible(model)),
      communicator_(communicator),
      options_(options),
      stages_(StagesOf(options, model_, communicator.size())),
      stage_(communicator.rank() % stages_),
      idle_(DeviceOf(model), options.warmup) {
  for (const at::Tensor& parameter : model.parameters()) communicator.Broadcast(parameter.detach(), 0);
  for (const at::Tensor& buffer : model.buffers()) communicator.Broadcast(buffer, 0);
  at::Tensor costs = at::zeros({std::ssize(model_.blocks())}, at::kDouble);
  if (communicator.rank() == 0) costs = at::tensor(MeasureBlocks(model_, DeviceOf(model)), at::kDouble);
  communicator.Broadcast(costs, 0);
  const auto* cost = static_cast<const double*>(costs.data_ptr());
  begins_ = pipeline::DivideByCost({cost, cost + costs.numel()}, stages_);

  const int group = communicator.rank() / stages_, groups = communicator.size() / stages_;
  if (groups > 1) {
    group_ = communicator.Split(group);
    equals_ = communicator.Split(stage_);
  }
  pipe_ = group_ ? group_.get() : &communicator;
  if (stage_ > 0) previous_.emplace(*pipe_, stage_ - 1, DeviceOf(model), MostInFlight(options.schedule));
  if (!last()) next_.emplace(*pipe_, stage_ + 1, DeviceOf(model), MostInFlight(options.schedule));
  MakeGradients();
  FindTiedParameters(group, groups);
}

std::vector<at::Tensor> PipelineStrategy::ParametersOf(int stage) const {
  std::vector<std::vector<at::Tensor>> lists;
  for (size_t block = begins_[stage]; block < begins_[stage + 1]; ++block) {
    for (const auto& module : model_.blocks()[block].modules) lists.push_back(module->parameters());
  }
  return Distinct(lists);
}

std::vector<at::Tensor> PipelineStrategy::BuffersOf(int stage) const {
  std::vector<std::vector<at::Tensor>> lists;
  for (size_t block = begins_[stage]; block < begins_[stage + 1]; ++block) {
    for (const auto& module : model_.blocks()[block].modules) lists.push_back(module->buffers());
  }
  return Distinct(lists);
}

void PipelineStrategy::MakeGradients() {
  for (const at::Tensor& parameter : ParametersOf(stage_)) {
    if (parameter.requires_grad()) parameters_.push_back(parameter);
  }
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  for (const std::vector<int>& indices :
       AssignBuckets(parameters_, ReverseOrder(parameters_.size()), {kNoLimit, kNoLimit})) {
    gradients_.push_back(MakeBucket(parameters_, indices, 0));
    const GradientBucket& bucket = gradients_.back();
    for (size_t k = 0; k < indices.size(); ++k) {
      gradient_of_[parameters_[indices[k]].unsafeGetTensorImpl()] = bucket.views[k];
    }
  }
}

void PipelineStrategy::FindTiedParameters(int group, int groups) {
  std::vector<std::pair<at::Tensor, std::vector<int>>>
      stages_of;  // in an order that is the same on all ranks
  for (int stage = 0; stage < stages_; ++stage) {
    for (const at::Tensor& parameter : ParametersOf(stage)) {
      const auto found =
          std::ranges::find_if(stages_of, [&](const auto& known) { return known.first.is_same(parameter); });
      if (found != stages_of.end()) {
        found->second.push_back(stage);
      } else if (parameter.requires_grad()) {
        stages_of.push_back({parameter, {stage}});
      }
    }
  }
  for (const auto& [parameter, stages] : stages_of) {
    if (stages.size() == 1) continue;
    const bool mine = std::ranges::find(stages, stage_) != stages.end();
    auto owners = communicator_.Split(mine ? group : groups);
    if (!mine) continue;
    tied_.push_back({gradient_of_.at(parameter.unsafeGetTensorImpl()), std::move(owners)});
  }
}

DataSlice PipelineStrategy::SliceOf(int rank, int ranks) const {
  return {.index = rank / stages_, .count = ranks / stages_};
}

std::vector<at::Tensor> PipelineStrategy::Trained() { return parameters_; }

void PipelineStrategy::Step(StepTask& task) {
  for (const GradientBucket& bucket : gradients_) bucket.flat.zero_();
  for (at::Tensor& parameter : parameters_) {
    parameter.mutable_grad() = gradient_of_.at(parameter.unsafeGetTensorImpl());
  }
  inputs_.assign(task.parts(), {});
  outputs_.assign(task.parts(), {});
  const auto sent = [&] { return (previous_ ? previous_->bytes() : 0) + (next_ ? next_->bytes() : 0); };
  const int64_t sent_before = sent();
  idle_.BeginStep();
  for (const auto [forward, part] : PassesOf(options_.schedule, stage_, stages_, task.parts())) {
    forward ? Forward(task, part) : Backward(task, part);
  }
  idle_.EndStep();
  BackwardCost cost;
  cost.computed = Moment(DeviceOf(model_));
  if (previous_) previous_->Flush();
  if (next_) next_->Flush();
  cost.bytes = sent() - sent_before + ReduceGradients();
  task.Measured(std::move(cost));
  task.Update();
}

at::Tensor PipelineStrategy::RunStage(at::Tensor x) const {
  for (size_t block = begins_[stage_]; block < begins_[stage_ + 1]; ++block) {
    x = model_.blocks()[block].forward(x);
  }
  return x;
}

void PipelineStrategy::Forward(StepTask& task, int64_t part) {
  at::Tensor input = task.Input(part);
  if (previous_) {
    if (!previous_->receiving()) previous_->StartReceive(input.size(0));
    input = idle_.During([&] { return previous_->Receive(); });
    if (part + 1 < task.parts()) previous_->StartReceive(task.Input(part + 1).size(0));
    task.marks().Mark(&StepTimes::comm_exposed);
    inputs_[part] = input.requires_grad_(true);
  }
  outputs_[part] = task.Run(
      part, [&] { return RunStage(input); }, last());
  if (next_) next_->SendActivation(outputs_[part]);
}

void PipelineStrategy::Backward(StepTask& task, int64_t part) {
  at::Tensor output = std::exchange(outputs_[part], {}), gradient;
  if (next_) {
    if (!next_->receiving()) next_->StartReceive(output.size(0));
    gradient = idle_.During([&] { return next_->Receive(); });
    if (part + 1 < task.parts()) next_->StartReceive(task.Input(part + 1).size(0));
    task.marks().Mark(&StepTimes::comm_exposed);
  }
  output.backward(gradient);
  task.marks().Mark(&StepTimes::backward);
  if (previous_) previous_->SendGradient(std::exchange(inputs_[part], {}).grad());
}

// Returns the number of bytes that were communicated.
int64_t PipelineStrategy::ReduceGradients() {
  int64_t bytes = 0;
  for (const auto& [gradient, owners] : tied_) {
    owners->AllReduce(gradient, ReduceOp::kSum);
    bytes += static_cast<int64_t>(gradient.nbytes());
  }
  if (!equals_) return bytes;
  for (const GradientBucket& bucket : gradients_) {
    equals_->AllReduce(bucket.flat, ReduceOp::kAverage);
    bytes += static_cast<int64_t>(bucket.flat.nbytes());
  }
  return bytes;
}

void PipelineStrategy::ShareResult(const at::Tensor& loss_and_correct) {
  pipe_->Broadcast(loss_and_correct, stages_ - 1);
}

void PipelineStrategy::EndEpoch() {
  for (int stage = 0; stage < stages_; ++stage) {
    for (const at::Tensor& parameter : ParametersOf(stage))
      communicator_.Broadcast(parameter.detach(), stage);
    for (const at::Tensor& buffer : BuffersOf(stage)) communicator_.Broadcast(buffer, stage);
  }
  idle_.ShareOver(communicator_);
}

void PipelineStrategy::AppendMetrics(std::vector<Metric>& metrics) const {
  if (idle_.share() >= 0) metrics.emplace_back("run/pipeline_bubble", idle_.share());
  metrics.emplace_back("run/pipeline_bubble_ideal", pipeline::IdealBubble(stages_, options_.parts));
}

}  // namespace scalelab::trainer
