#include "worker/trainer/strategies/ddp_strategy.h"

#include <algorithm>
#include <utility>

#include "worker/trainer/compat.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

namespace {

constexpr std::string_view kReducer = "reducer/";  // prefix of the names of the reducer's state

// Returns the gradients of a bucket without its tail.
at::Tensor GradientsOf(const GradientBucket& bucket) {
  return bucket.flat.narrow(0, 0, bucket.flat.numel() - bucket.tail.numel());
}

}  // namespace

DdpStrategy::DdpStrategy(Model& model, Communicator& communicator, const DdpOptions& options,
                         std::unique_ptr<GradientReducer> reducer)
    : GradientStrategy(model),
      communicator_(communicator),
      options_(options),
      reducer_(reducer ? std::move(reducer) : MakeExactReducer(communicator)) {
  for (const at::Tensor& parameter : model.parameters()) {
    communicator.Broadcast(parameter.detach(), 0);
    if (parameter.requires_grad()) parameters_.push_back(parameter);
  }
  SyncBuffers();
  never_used_.resize(parameters_.size());
  MakeBuckets(ReverseOrder(parameters_.size()));
  hooks_.Attach(parameters_, [this](int parameter) { GradientReady(parameter); });
}

void DdpStrategy::Accumulate(const at::Tensor& loss) {
  BeginStep();
  loss.backward();
}

BackwardCost DdpStrategy::Backward(const at::Tensor& loss) {
  BeginStep();
  BackwardCost cost;
  started_.clear();
  next_ = 0;
  for (GradientBucket& bucket : buckets_) {
    bucket.missing = static_cast<int>(bucket.parameters.size());
  }
  reducer_->BeginStep();
  if (options_.find_unused) {
    for (int parameter : hooks_.Unreached(loss)) CountDown(parameter);
  }
  synchronising_ = true;
  if (options_.record_buckets) times_.Begin(loss.device());
  loss.backward();
  synchronising_ = false;
  cost.computed = DeviceEvent(loss.device());
  times_.Computed(loss.device());

  for (GradientBucket& bucket : buckets_) bucket.missing = 0;
  StartFullBuckets();
  GradientSquares mean_squares;
  std::vector<Span> spans;
  for (size_t i = 0; i < started_.size(); ++i) {
    started_[i]->Wait();
    spans.push_back(started_[i]->span());
    if (spans.back().end != nullptr) cost.spans.push_back(spans.back());
    if (MeasuresSquares()) mean_squares.Add(GradientsOf(buckets_[i]));
  }
  times_.End(std::move(spans));
  cost.bytes = reducer_->bytes();
  cost.rank_square = rank_squares_.Take();
  cost.mean_square = mean_squares.Take();
  DropUnused();
  in_step_ = false;
  if (order_ == Order::kDeclared) order_ = Order::kArriving;
  return cost;
}

void DdpStrategy::DiscardStep() {
  in_step_ = synchronising_ = false;
  started_.clear();
  rank_squares_.Take();
  times_.Discard();
}

// Discards the gradients of the previous step. They are views of the old buckets, whose memory must be free before new buckets
// are made.
void DdpStrategy::BeginStep() {
  if (in_step_) return;
  in_step_ = true;
  used_.assign(parameters_.size(), 0);
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  if (order_ == Order::kArriving) RebuildBuckets();
}

// Copies the first gradient of a step into the bucket, and makes grad() a view of the bucket. Autograd adds
// later gradients in place. Copying costs half as much as clearing the bucket and adding to it.
void DdpStrategy::TakeIntoBucket(int parameter) {
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  if (gradient.is_same(view_of_[parameter])) return;
  view_of_[parameter].copy_(gradient);
  gradient = view_of_[parameter];
}

void DdpStrategy::TakeAllIntoBucket(const GradientBucket& bucket) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> views, gradients;
  for (const int parameter : bucket.parameters) {
    at::Tensor& gradient = parameters_[parameter].mutable_grad();
    if (used_[parameter] == 0 || gradient.is_same(view_of_[parameter])) continue;
    views.push_back(view_of_[parameter]);
    gradients.push_back(std::exchange(gradient, view_of_[parameter]));
  }
  if (views.empty()) return;
#if SCALELAB_TORCH_AT_LEAST(2, 1)
  at::_foreach_copy_(views, gradients);
#else
  for (size_t i = 0; i < views.size(); ++i) views[i].copy_(gradients[i]);
#endif
}

void DdpStrategy::RebuildBuckets() {
  std::vector<int> order = arrived_;
  for (int i : ReverseOrder(parameters_.size())) {
    if (std::ranges::find(order, i) == order.end()) order.push_back(i);
  }
  const at::Tensor agreed = at::empty({std::ssize(order)}, at::kLong);
  std::ranges::copy(order, static_cast<int64_t*>(agreed.data_ptr()));
  communicator_.Broadcast(agreed, 0);
  std::copy_n(static_cast<const int64_t*>(agreed.data_ptr()), order.size(), order.begin());
  std::erase_if(order, [&](int i) { return never_used_[i]; });
  started_.clear();  // these operations have ended, and may keep the memory of the old buckets
  MakeBuckets(order);
  order_ = Order::kFinal;
}

void DdpStrategy::MakeBuckets(const std::vector<int>& order) {
  buckets_.clear();
  bucket_of_.assign(parameters_.size(), -1);
  view_of_.assign(parameters_.size(), {});
  const auto assigned = AssignBuckets(parameters_, order, options_.caps);
  for (const std::vector<int>& indices : assigned) {
    const bool last = buckets_.size() + 1 == assigned.size();
    GradientBucket& bucket =
        buckets_.emplace_back(MakeBucket(parameters_, indices, last ? std::ssize(parameters_) : 0));
    for (size_t k = 0; k < indices.size(); ++k) {
      bucket_of_[indices[k]] = static_cast<int>(buckets_.size()) - 1;
      view_of_[indices[k]] = bucket.views[k];
    }
  }
}

void DdpStrategy::GradientReady(int parameter) {
  if (never_used_[parameter]) {
    throw TrainerError(
        "static_graph is set, but a parameter that had no gradient in the first step has one now: "
        "leave static_graph out, or use find_unused_parameters");
  }
  if (!options_.copy_whole_buckets) TakeIntoBucket(parameter);
  used_[parameter] = 1;
  if (!synchronising_) return;
  if (order_ == Order::kDeclared) arrived_.push_back(parameter);
  CountDown(parameter);
}

void DdpStrategy::CountDown(int parameter) {
  if (bucket_of_[parameter] < 0) return;
  if (--buckets_[bucket_of_[parameter]].missing == 0 && options_.overlap) StartFullBuckets();
}

void DdpStrategy::StartFullBuckets() {
  for (; next_ < buckets_.size() && buckets_[next_].missing <= 0; ++next_) {
    GradientBucket& bucket = buckets_[next_];
    if (options_.copy_whole_buckets) TakeAllIntoBucket(bucket);
    for (const int parameter : bucket.parameters) {
      if (used_[parameter] > 0) continue;
      view_of_[parameter].zero_();
      parameters_[parameter].mutable_grad() = view_of_[parameter];
    }
    // The last bucket starts when it is known which parameters this rank has used.
    if (bucket.tail.numel() > 0) {
      const bool known = AllUsed() || DropsAreKnown();
      known ? bucket.tail.fill_(1) : bucket.tail.copy_(at::tensor(used_));
    }
    if (MeasuresSquares()) rank_squares_.Add(GradientsOf(bucket));
    times_.Ready(bucket.flat.device());
    const int64_t before = reducer_->bytes();
    started_.push_back(reducer_->Start(bucket));
    times_.Started(reducer_->bytes() - before);
  }
}

bool DdpStrategy::DropsAreKnown() const { return options_.static_graph && order_ == Order::kFinal; }

bool DdpStrategy::AllUsed() const {
  return std::ranges::all_of(used_, [](float used) { return used > 0; });
}

void DdpStrategy::DropUnused() {
  // If this rank has used all parameters, no gradient has to be dropped. Returning here avoids waiting
  // for the GPU.
  if (buckets_.empty() || AllUsed() || DropsAreKnown()) return;
  const at::Tensor used = buckets_.back().tail.to(at::kCPU, at::kFloat);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (static_cast<const float*>(used.data_ptr())[i] > 0) continue;
    parameters_[i].mutable_grad().reset();
    if (options_.static_graph) never_used_[i] = true;
  }
}

std::string DdpStrategy::WhyNotRecorded() const {
  if (order_ != Order::kFinal) return "buckets are not final yet";
  if (const std::string why = reducer_->WhyNotRecorded(); !why.empty()) return why;
  return AllUsed() || options_.static_graph
             ? ""
             : "some parameters get no gradient, and each step looks up which ones; set static_graph";
}

NamedTensors DdpStrategy::State() {
  at::Tensor arrived = at::empty({std::ssize(arrived_)}, at::kLong);
  std::ranges::copy(arrived_, static_cast<int64_t*>(arrived.data_ptr()));
  NamedTensors state = {{"arrived", arrived}, {"never_used", FlagsOf(never_used_)}};
  AppendBelow(state, kReducer, reducer_->State());
  return state;
}

void DdpStrategy::LoadState(const std::vector<NamedTensors>& of_ranks) {
  if (of_ranks.empty()) return;
  for (const auto& [name, tensor] : of_ranks[0]) {
    if (name == "arrived") {
      const auto* first = static_cast<const int64_t*>(tensor.data_ptr());
      arrived_.assign(first, first + tensor.numel());
      if (!arrived_.empty()) order_ = Order::kArriving;
    } else if (name == "never_used" && tensor.numel() == std::ssize(never_used_)) {
      never_used_ = FlagsIn(tensor);
    }
  }
  std::vector<NamedTensors> of_reducers;
  for (const NamedTensors& of_rank : of_ranks) of_reducers.push_back(Below(of_rank, kReducer));
  reducer_->LoadState(of_reducers, parameters_.front().device());
}

ModelMemory DdpStrategy::Memory(const ModelMemory& found) const {
  ModelMemory memory = found;
  memory.gradients += reducer_->ErrorBytes();
  return memory;
}

ModelMemory DdpStrategy::MemoryByFormula(double parameters) const {
  return {.parameters = parameters,
          .gradients = parameters + reducer_->ErrorBytesByFormula(parameters_),
          .optimizer = parameters};
}

void DdpStrategy::AppendMetrics(std::vector<Metric>& metrics) const {
  reducer_->AppendMetrics(metrics);
  if (communicator_.rank() == 0) times_.AppendTo(metrics);
}

void DdpStrategy::SyncBuffers() {
  for (const at::Tensor& buffer : model_.buffers()) communicator_.Broadcast(buffer, 0);
}

}  // namespace scalelab::trainer
