#include "worker/trainer/strategies/pipeline_strategy.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using pipeline::PassesOf;

// Names of the tensors that State returns.
constexpr char kBegins[] = "begins", kIdle[] = "idle";

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

// Returns the seconds that forward and backward of each block take on this rank. Does not change the model.
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
      const DeviceEvent begin(device);
      const at::Tensor y = model.blocks()[i].forward(x);
      y.backward(at::ones_like(y));
      const DeviceEvent end(device);
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

// Returns the greatest number of sends in flight. With 1f1b, it limits how far a stage runs ahead
// of its neighbours.
size_t MostInFlight(pipeline::Schedule schedule) {
  return schedule == pipeline::Schedule::k1f1b ? 2 : std::numeric_limits<size_t>::max();
}

at::Device DeviceOf(const Model& model) { return model.parameters().front().device(); }

// Returns the tensors of `lists` without duplicates.
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
  MakeStages();
}

void PipelineStrategy::MakeStages() {
  parameters_.clear();
  tied_.clear();
  for (const at::Tensor& parameter : ParametersOf(stage_)) {
    if (parameter.requires_grad()) parameters_.push_back(parameter);
  }
  gradients_ = std::make_unique<GroupGradients>(parameters_, equals_.get());
  FindTiedParameters();
  // All owners have the sum of the gradients.
  for (const Tied& tied : tied_) {
    if (tied.owners->rank() > 0) gradients_->CountElsewhere(tied.position);
  }
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

void PipelineStrategy::FindTiedParameters() {
  const int group = communicator_.rank() / stages_, groups = communicator_.size() / stages_;
  std::vector<std::pair<at::Tensor, std::vector<int>>> stages_of;  // the order is the same on all ranks
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
    const auto place = std::ranges::find_if(
        parameters_, [&, &shared = parameter](const at::Tensor& own) { return own.is_same(shared); });
    tied_.push_back(
        {.position = static_cast<size_t>(place - parameters_.begin()), .owners = std::move(owners)});
  }
}

DataSlice PipelineStrategy::SliceOf(int rank, int ranks) const {
  return {.index = rank / stages_, .count = ranks / stages_};
}

std::vector<at::Tensor> PipelineStrategy::Trained() { return parameters_; }

void PipelineStrategy::Step(StepTask& task) {
  gradients_->BeginStep();
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
  cost.computed = DeviceEvent(DeviceOf(model_));
  if (previous_) previous_->Flush();
  if (next_) next_->Flush();
  cost.bytes = sent() - sent_before + ReduceGradients();
  if (const at::Tensor squares = gradients_->Squares(communicator_, DeviceOf(model_)); squares.defined()) {
    cost.rank_square = squares[0];
    cost.mean_square = squares[1];
  }
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
  task.BackwardEnded(part);
  task.marks().Mark(&StepTimes::backward);
  if (previous_) previous_->SendGradient(std::exchange(inputs_[part], {}).grad());
}

// Returns the number of bytes that were communicated.
int64_t PipelineStrategy::ReduceGradients() {
  int64_t bytes = 0;
  for (const Tied& tied : tied_) {
    const at::Tensor gradient = gradients_->Gradient(tied.position);
    tied.owners->AllReduce(gradient, ReduceOp::kSum);
    bytes += static_cast<int64_t>(gradient.nbytes());
  }
  return bytes + gradients_->Average();
}

void PipelineStrategy::ShareResult(const at::Tensor& loss_and_correct) {
  pipe_->Broadcast(loss_and_correct, stages_ - 1);
}

void PipelineStrategy::EndEpoch() {
  for (int stage = 0; stage < stages_; ++stage) {
    for (const at::Tensor& parameter : ParametersOf(stage))
      communicator_.Broadcast(parameter.detach(), stage);
  }
  ShareBuffers();
  idle_.ShareOver(communicator_);
}

void PipelineStrategy::ShareBuffers() {
  for (int stage = 0; stage < stages_; ++stage) {
    for (const at::Tensor& buffer : BuffersOf(stage)) communicator_.Broadcast(buffer, stage);
  }
}

std::vector<Shard> PipelineStrategy::Shards() {
  std::map<const void*, int> position_of;
  for (const at::Tensor& parameter : model_.parameters()) {
    if (parameter.requires_grad())
      position_of.emplace(parameter.unsafeGetTensorImpl(), static_cast<int>(position_of.size()));
  }
  std::vector<Shard> shards;
  for (const at::Tensor& parameter : parameters_) {
    shards.push_back({.parameter = position_of.at(parameter.unsafeGetTensorImpl()),
                      .value = parameter.detach(),
                      .first = 0,
                      .strides = parameter.strides().vec(),
                      .stored = communicator_.rank() < stages_});
  }
  for (const Tied& tied : tied_) {
    if (tied.owners->rank() > 0) shards[tied.position].stored = false;
  }
  return shards;
}

void PipelineStrategy::ShareShards(const std::vector<at::Tensor>& of_shards) {
  for (const Tied& tied : tied_) tied.owners->Broadcast(of_shards[tied.position], 0);
  if (!equals_) return;
  for (const at::Tensor& of_shard : of_shards) equals_->Broadcast(of_shard, 0);
}

void PipelineStrategy::PrepareFor(const NamedTensors& state) {
  for (const auto& [name, begins] : state) {
    if (name != kBegins) continue;
    if (begins.numel() != stages_ + 1) {
      throw TrainerError("the checkpoint was written with pipeline_stages " +
                         std::to_string(begins.numel() - 1) + ", this run has " + std::to_string(stages_) +
                         ": restore pipeline_stages");
    }
    const auto* first = static_cast<const int64_t*>(begins.data_ptr());
    begins_.assign(first, first + begins.numel());
    MakeStages();
  }
}

NamedTensors PipelineStrategy::State() {
  ShareBuffers();
  const auto [idle, total] = idle_.Seconds();
  return {{kBegins, at::tensor(std::vector<int64_t>(begins_.begin(), begins_.end()), at::kLong)},
          {kIdle, at::tensor({idle, total}, at::kDouble)}};
}

void PipelineStrategy::LoadState(const std::vector<NamedTensors>& of_ranks) {
  if (of_ranks.size() > 1) return;  // with another number of stages, waiting times differ
  for (const auto& [name, seconds] : of_ranks.front()) {
    if (name == kIdle) idle_.Add(seconds[0].item<double>(), seconds[1].item<double>());
  }
}

ModelMemory PipelineStrategy::MemoryByFormula(double parameters) const {
  double of_stage = 0;
  for (const at::Tensor& parameter : parameters_) of_stage += static_cast<double>(parameter.nbytes());
  return {.parameters = parameters, .gradients = of_stage, .optimizer = of_stage};
}

void PipelineStrategy::AppendMetrics(std::vector<Metric>& metrics) const {
  if (idle_.share() >= 0) metrics.emplace_back("run/pipeline_bubble", idle_.share());
  metrics.emplace_back("run/pipeline_bubble_ideal", pipeline::IdealBubble(stages_, options_.parts));
}

}  // namespace scalelab::trainer
