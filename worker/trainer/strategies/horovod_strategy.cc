#include "worker/trainer/strategies/horovod_strategy.h"

#include <algorithm>

#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

HorovodStrategy::HorovodStrategy(Model& model, Communicator& communicator, const horovod::Options& options,
                                 std::unique_ptr<Communicator> control)
    : GradientStrategy(model),
      communicator_(communicator),
      fp16_(options.fp16),
      loop_(communicator, model.parameters().front().device(), options, std::move(control)) {
  for (const auto& named : model.named_parameters()) {
    communicator.Broadcast(named.value().detach(), 0);
    if (!named.value().requires_grad()) continue;
    names_.push_back(named.key());
    parameters_.push_back(named.value());
  }
  SyncBuffers();
  compressed_.resize(parameters_.size());
  submitted_.resize(parameters_.size());
  hooks_.Attach(parameters_, [this](int index) {
    if (synchronising_) Submit(index);
  });
}

void HorovodStrategy::BeginStep() {
  if (in_step_) return;
  in_step_ = true;
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

void HorovodStrategy::Accumulate(const at::Tensor& loss) {
  BeginStep();
  loss.backward();
}

BackwardCost HorovodStrategy::Backward(const at::Tensor& loss) {
  BeginStep();
  cost_ = {};
  submitted_.assign(parameters_.size(), false);
  loop_.Open();
  synchronising_ = true;
  loss.backward();
  synchronising_ = false;
  // Submit gradients that only Accumulate has computed.
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!submitted_[i] && parameters_[i].grad().defined()) Submit(static_cast<int>(i));
  }
  cost_.computed = DeviceEvent(loss.device());

  const auto received = loop_.Close();
  const at::NoGradGuard no_grad;
  for (const auto& [name, flat] : received) {
    const size_t i = std::ranges::find(names_, name) - names_.begin();
    TORCH_CHECK(i < names_.size(), "all ranks must train the same model: this one has no parameter ", name);
    at::Tensor& gradient = parameters_[i].mutable_grad();
    gradient = at::empty_like(parameters_[i]).detach();
    horovod::FlatView(gradient).copy_(flat);
  }
  for (size_t i = 0; fp16_ && i < parameters_.size(); ++i) {
    if (compressed_[i].defined()) parameters_[i].mutable_grad().copy_(compressed_[i]);
    compressed_[i].reset();
  }
  GradientSquares mean_squares;
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.grad().defined()) mean_squares.Add(horovod::FlatView(parameter.grad()));
  }
  cost_.rank_square = rank_squares_.Take();
  cost_.mean_square = mean_squares.Take();
  cost_.spans = loop_.TakeSpans();
  in_step_ = false;
  return std::move(cost_);
}

void HorovodStrategy::Submit(int index) {
  at::Tensor gradient = parameters_[index].grad();
  rank_squares_.Add(horovod::FlatView(gradient));
  if (fp16_ && gradient.scalar_type() == at::kFloat) {
    const at::NoGradGuard no_grad;
    gradient = compressed_[index] = gradient.to(at::kHalf);
  }
  submitted_[index] = true;
  cost_.bytes += static_cast<int64_t>(gradient.nbytes());
  loop_.Submit(names_[index], gradient);
}

void HorovodStrategy::Join() { loop_.Join(); }

void HorovodStrategy::SyncBuffers() {
  for (const at::Tensor& buffer : model_.buffers()) communicator_.Broadcast(buffer, 0);
}

void HorovodStrategy::AppendMetrics(std::vector<Metric>& metrics) const {
  const horovod::Counters& c = loop_.counters();
  const horovod::Autotuner::Setting setting = loop_.setting();
  metrics.insert(metrics.end(),
                 {{"horovod/cycles", static_cast<double>(c.cycles)},
                  {"horovod/negotiations", static_cast<double>(c.negotiations)},
                  {"horovod/cache_hits", static_cast<double>(c.cache_hits)},
                  {"horovod/cache_misses", static_cast<double>(c.cache_misses)},
                  {"horovod/all_reduces", static_cast<double>(c.all_reduces)},
                  {"horovod/ring_all_reduces", static_cast<double>(c.ring_all_reduces)},
                  {"horovod/hierarchical_all_reduces", static_cast<double>(c.hierarchical_all_reduces)},
                  {"horovod/fused_tensors", static_cast<double>(c.fused_tensors)},
                  {"horovod/bytes", static_cast<double>(c.bytes)},
                  {"horovod/stall_warnings", static_cast<double>(c.stall_warnings)},
                  {"horovod/cycle_time_s", setting.cycle_seconds},
                  {"horovod/fusion_bytes", static_cast<double>(setting.fusion_bytes)}});
}

}  // namespace scalelab::trainer
