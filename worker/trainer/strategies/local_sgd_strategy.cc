#include "worker/trainer/strategies/local_sgd_strategy.h"

#include <limits>

#include "worker/trainer/models/model.h"

namespace scalelab::trainer {
namespace {

constexpr std::string_view kTogether = "together/";  // prefix of the state of the first steps' strategy

}  // namespace

LocalSgdStrategy::LocalSgdStrategy(Model& model, Communicator& communicator, const LocalSgdOptions& options)
    : model_(model), communicator_(communicator), options_(options) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model.parameters()) {
    communicator.Broadcast(parameter.detach(), 0);
    if (parameter.requires_grad()) parameters_.push_back(parameter);
  }
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  for (const std::vector<int>& indices :
       AssignBuckets(parameters_, ReverseOrder(parameters_.size()), {kNoLimit, kNoLimit})) {
    const GradientBucket block = MakeBucket(parameters_, indices, 0);
    for (size_t k = 0; k < indices.size(); ++k) {
      block.views[k].copy_(parameters_[indices[k]]);
      parameters_[indices[k]].set_data(block.views[k]);
    }
    blocks_.push_back(block.flat);
  }
  SyncBuffers();
  if (options.start_step > 0) {
    // The first steps alone do not show the noise of gradients in the measured window.
    together_ = std::make_unique<DdpStrategy>(model, communicator, DdpOptions{.measure_squares = false});
  }
}

void LocalSgdStrategy::Step(StepTask& task) {
  rate_ = task.rate();
  if (averages_gradients()) {
    together_->Step(task);
    ++step_;
    return;
  }
  together_.reset();
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  BeginSlowMomentum();
  const int64_t last = task.parts() - 1;
  for (int64_t part = 0; part < last; ++part) {
    task.Forward(part).backward();
    task.marks().Mark(&StepTimes::backward);
  }
  task.Forward(last).backward();
  const bool averages = since_average_ + 1 >= options_.steps;
  BackwardCost cost;
  cost.computed = DeviceEvent(parameters_.front().device());
  for (const at::Tensor& block : blocks_) cost.bytes += averages ? static_cast<int64_t>(block.nbytes()) : 0;
  task.Measured(std::move(cost));
  task.Update();
  ++step_;
  ++since_average_;
  if (averages) Average(rate_);
  task.marks().Mark(&StepTimes::comm_exposed);
}

void LocalSgdStrategy::BeginSlowMomentum() {
  if (options_.slow_momentum <= 0 || !previous_.empty()) return;
  for (const at::Tensor& block : blocks_) {
    previous_.push_back(block.clone());
    slow_.push_back(at::zeros_like(block));
  }
}

void LocalSgdStrategy::Average(double rate) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& block : blocks_) communicator_.AllReduce(block, ReduceOp::kAverage);
  since_average_ = 0;
  ++averages_;
  if (previous_.empty()) return;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    // At learning rate 0 the parameters have not changed.
    if (rate > 0) {
      slow_[i].mul_(options_.slow_momentum).add_((previous_[i] - blocks_[i]).div_(rate));
      at::sub_out(blocks_[i], previous_[i], slow_[i], rate);
    }
    previous_[i].copy_(blocks_[i]);
  }
}

void LocalSgdStrategy::EndEpoch() {
  if (since_average_ > 0) Average(rate_);
}

std::vector<at::Tensor> LocalSgdStrategy::Trained() { return model_.parameters(); }

void LocalSgdStrategy::SyncBuffers() {
  for (const at::Tensor& buffer : model_.buffers()) communicator_.Broadcast(buffer, 0);
}

NamedTensors LocalSgdStrategy::State() {
  NamedTensors state = {{"counts", at::tensor({step_, since_average_, averages_}, at::kLong)},
                        {"rate", at::full({1}, rate_, at::kDouble)}};
  for (size_t i = 0; i < previous_.size(); ++i) {
    state.emplace_back("previous/" + std::to_string(i), previous_[i]);
    state.emplace_back("slow/" + std::to_string(i), slow_[i]);
  }
  if (together_) AppendBelow(state, kTogether, together_->State());
  return state;
}

// If the number of ranks has changed, the caller has set the parameters to their mean. The rest of the state
// is equal on all ranks.
void LocalSgdStrategy::LoadState(const std::vector<NamedTensors>& of_ranks) {
  const at::NoGradGuard no_grad;
  const NamedTensors& state = of_ranks.at(0);
  if (!Below(state, "previous/").empty()) BeginSlowMomentum();
  for (const auto& [name, tensor] : state) {
    if (name == "counts") {
      const auto* counts = static_cast<const int64_t*>(tensor.data_ptr());
      step_ = counts[0], since_average_ = counts[1], averages_ = counts[2];
    } else if (name == "rate") {
      rate_ = tensor.item<double>();
    }
  }
  for (size_t i = 0; i < previous_.size(); ++i) {
    const std::string number = std::to_string(i);
    for (const auto& [name, tensor] : state) {
      if (name == "previous/" + number) previous_[i].copy_(tensor);
      if (name == "slow/" + number) slow_[i].copy_(tensor);
    }
  }
  if (const NamedTensors together = Below(state, kTogether); together_ && !together.empty())
    together_->LoadState({together});
}

ModelMemory LocalSgdStrategy::Memory(const ModelMemory& found) const {
  ModelMemory memory = found;
  memory.optimizer += BytesOf(previous_) + BytesOf(slow_);
  return memory;
}

ModelMemory LocalSgdStrategy::MemoryByFormula(double parameters) const {
  return {.parameters = parameters,
          .gradients = parameters,
          .optimizer = previous_.empty() ? parameters : 3 * parameters};
}

void LocalSgdStrategy::AppendMetrics(std::vector<Metric>& metrics) const {
  metrics.emplace_back("local/averages", static_cast<double>(averages_));
}

}  // namespace scalelab::trainer
