#include "worker/trainer/strategies/zero_strategy.h"

#include <algorithm>

#include "worker/trainer/errors.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

namespace {

constexpr std::string_view kOfReducer = "reducer/";  // prefix of the names of the reducer's state

}  // namespace

ZeroStrategy::ZeroStrategy(Model& model, Communicator& communicator, const ZeroOptions& options,
                           std::unique_ptr<GradientReducer> reducer)
    : model_(model), communicator_(communicator), options_(options), reducer_(std::move(reducer)) {
  for (const at::Tensor& parameter : model.parameters()) {
    communicator.Broadcast(parameter.detach(), 0);
    if (parameter.requires_grad()) parameters_.push_back(parameter);
  }
  SyncBuffers();
  never_used_.resize(parameters_.size());
  if (options.stage > 2) {
    gathered_ = std::make_unique<GatheredParameters>(
        communicator, [this] { StartNextReduction(); }, [this] { StartFullBuckets(); }, memory_);
  }
  MakeBuckets();
  hooks_.Attach(parameters_, [this](int parameter) { GradientReady(parameter); });
}

// Moves the parameters into the memory of buckets. Their order is roughly the order in which backward
// computes their gradients.
void ZeroStrategy::MakeBuckets() {
  const at::NoGradGuard no_grad;
  const int64_t ranks = communicator_.size();
  const BucketCaps caps{.first_bytes = options_.bucket_bytes, .bytes = options_.bucket_bytes};
  place_of_.resize(parameters_.size());
  for (const std::vector<int>& indices : AssignBuckets(parameters_, ReverseOrder(parameters_.size()), caps)) {
    Bucket& bucket = buckets_.emplace_back();
    BlockLayout layout = LayOut(parameters_, indices);
    const int64_t unit = ranks * layout.align;
    bucket.parameters = indices;
    bucket.offsets = std::move(layout.offsets);
    bucket.values = at::zeros({(layout.elements + unit - 1) / unit * unit},
                              parameters_[indices.front()].options().requires_grad(false));
    const int64_t share = bucket.values.numel() / ranks, begin = share * communicator_.rank();
    for (size_t k = 0; k < indices.size(); ++k) {
      at::Tensor& parameter = parameters_[indices[k]];
      place_of_[indices[k]] = {buckets_.size() - 1, k};
      const at::Tensor view = ViewOf(bucket, k, bucket.values);
      view.copy_(parameter);
      parameter.set_data(view);
    }
    bucket.own_values = bucket.values.narrow(0, begin, share);
    if (gathered_) {
      bucket.own_values = bucket.own_values.clone();
      gathered_->Add(bucket.values, bucket.own_values);
    }
    for (size_t k = 0; k < indices.size(); ++k) {
      const at::Tensor& parameter = parameters_[indices[k]];
      const int64_t first = std::max(bucket.offsets[k], begin);
      const int64_t last = std::min(bucket.offsets[k] + parameter.numel(), begin + share);
      if (first >= last) continue;
      at::Tensor value = bucket.own_values.narrow(0, first - begin, last - first);
      if (parameter.dim() >= 2) value = value.view({1, -1});
      bucket.pieces.push_back({indices[k], first - begin, value.detach().requires_grad_(true)});
    }
  }
}

std::vector<at::Tensor> ZeroStrategy::Trained() {
  std::vector<at::Tensor> values;
  for (const Bucket& bucket : buckets_) {
    for (const Piece& piece : bucket.pieces) values.push_back(piece.value);
  }
  return values;
}

std::vector<Shard> ZeroStrategy::Shards() {
  std::vector<Shard> shards;
  for (const Bucket& bucket : buckets_) {
    const int64_t begin = bucket.own_values.numel() * communicator_.rank();
    for (const Piece& piece : bucket.pieces) {
      const int64_t offset = bucket.offsets[place_of_[piece.parameter].second];
      shards.push_back({.parameter = piece.parameter,
                        .value = piece.value.detach().view(-1),
                        .first = begin + piece.offset - offset});
    }
  }
  return shards;
}

NamedTensors ZeroStrategy::State() {
  NamedTensors state = {{"never_used", FlagsOf(never_used_)}};
  if (reducer_) AppendBelow(state, kOfReducer, reducer_->State());
  return state;
}

void ZeroStrategy::LoadState(const std::vector<NamedTensors>& of_ranks) {
  for (const auto& [name, tensor] : of_ranks.at(0)) {
    if (name == "never_used") never_used_ = FlagsIn(tensor);
  }
  if (reducer_) {
    std::vector<NamedTensors> of_reducers;
    for (const NamedTensors& of_rank : of_ranks) of_reducers.push_back(Below(of_rank, kOfReducer));
    reducer_->LoadState(of_reducers, parameters_.front().device());
  }
  if (!gathered_) GatherParameters();
}

at::Tensor ZeroStrategy::ViewOf(const Bucket& bucket, size_t k, const at::Tensor& flat) const {
  const at::Tensor& parameter = parameters_[bucket.parameters[k]];
  return flat.as_strided(parameter.sizes(), parameter.strides(), bucket.offsets[k]);
}

void ZeroStrategy::Allocate(Bucket& bucket) {
  if (bucket.gradients.defined()) return;
  bucket.gradients = at::zeros({bucket.values.numel()}, bucket.values.options());
  memory_.now += static_cast<int64_t>(bucket.gradients.nbytes());
  memory_.Record();
}

void ZeroStrategy::Step(StepTask& task) {
  BeginStep();
  const auto watch = gathered_ ? gathered_->StartWatch() : nullptr;
  const int64_t parts = task.parts(), passes = options_.stage == 1 ? parts : task.most_parts();
  for (int64_t pass = 0; pass < passes; ++pass) {
    const bool last = pass + 1 == parts, reduces = options_.stage > 1 || last;
    if (gathered_) gathered_->BeginPass();
    at::Tensor loss;  // undefined in a pass without samples on this rank, which contributes zeros
    if (pass < parts) loss = task.Forward(pass);
    if (reduces) BeginPass(loss);
    if (loss.defined()) loss.backward();
    if (last) cost_.computed = DeviceEvent(loss.device());
    if (pass + 1 < parts) task.marks().Mark(&StepTimes::backward);
    if (reduces) EndPass();
    if (reduces && pass + 1 < parts) task.marks().Mark(&StepTimes::comm_exposed);
  }
  if (gathered_) {
    cost_.bytes += gathered_->TakeBytes();
    for (Span& span : gathered_->TakeSpans()) cost_.spans.push_back(std::move(span));
  }
  if (reducer_) cost_.bytes += reducer_->bytes();
  cost_.mean_square = AgreeOnUnused();
  cost_.rank_square = rank_squares_.Take();
  // The squared norms need the complete gradient of a rank, which exists only if it is reduced once, and its mean.
  if ((options_.stage > 1 && passes > 1) || reducer_) cost_.mean_square.reset();
  task.Measured(std::move(cost_));
  task.Update();
  cost_ = {};
  gathered_ ? gathered_->EndStep() : GatherParameters();
  task.marks().Communicated(cost_.spans);
  task.marks().Mark(&StepTimes::comm_exposed);
}

void ZeroStrategy::BeginStep() {
  cost_ = {};
  rank_squares_.Take();
  reduced_before_ = false;
  used_.assign(parameters_.size(), 0);
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  for (Bucket& bucket : buckets_) {
    for (Piece& piece : bucket.pieces) piece.value.mutable_grad().reset();
    // At the end of a step, the updated parameters are gathered from all ranks.
    if (!gathered_) cost_.bytes += static_cast<int64_t>(bucket.values.nbytes());
  }
  if (gathered_) gathered_->BeginStep();
  if (reducer_) reducer_->BeginStep();
}

void ZeroStrategy::EndEpoch() {
  if (gathered_) gathered_->GatherAll();
}

void ZeroStrategy::BeginPass(const at::Tensor& loss) {
  next_ = 0;
  for (Bucket& bucket : buckets_) bucket.missing = static_cast<int>(bucket.parameters.size());
  if (options_.find_unused && loss.defined()) {
    for (int parameter : hooks_.Unreached(loss)) CountDown(parameter);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (never_used_[i] && !options_.find_unused) CountDown(static_cast<int>(i));
  }
  reducing_ = true;
  if (gathered_) gathered_->BeginBackward();
}

void ZeroStrategy::EndPass() {
  reducing_ = false;
  for (Bucket& bucket : buckets_) bucket.missing = 0;
  StartFullBuckets();
  if (gathered_) gathered_->EndPass();
  while (!reductions_.empty()) FinishReduction();
  reduced_before_ = true;
}

void ZeroStrategy::GradientReady(int parameter) {
  if (never_used_[parameter]) {
    throw TrainerError(
        "static_graph is set, but a parameter that had no gradient in the first step has one now: "
        "leave static_graph out, or use find_unused_parameters");
  }
  if (gathered_) gathered_->Check();
  const auto [index, k] = place_of_[parameter];
  if (reducing_ && index < next_) {
    throw TrainerError(
        "a gradient arrives later than on rank 0 in the first step, after it had to be reduced: use "
        "native/zero2");
  }
  Bucket& bucket = buckets_[index];
  Allocate(bucket);
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  // Copy the first gradient. Autograd adds later gradients in place.
  if (at::Tensor view = ViewOf(bucket, k, bucket.gradients); gradient.data_ptr() != view.data_ptr()) {
    view.copy_(gradient);
    gradient = view;
  }
  used_[parameter] = 1;
  if (reducing_) CountDown(parameter);
}

void ZeroStrategy::CountDown(int parameter) {
  --buckets_[place_of_[parameter].first].missing;
  if (reducing_) StartFullBuckets();
}

void ZeroStrategy::StartFullBuckets() {
  while (next_ < buckets_.size() && buckets_[next_].missing <= 0 && (!gathered_ || gathered_->MayReduce())) {
    if (gathered_) gathered_->Reduces();
    StartNextReduction();
  }
}

void ZeroStrategy::StartNextReduction() {
  if (reductions_.size() >= kInFlight) FinishReduction();
  StartReduction(next_++);
}

void ZeroStrategy::StartReduction(size_t index) {
  const at::NoGradGuard no_grad;
  Bucket& bucket = buckets_[index];
  Allocate(bucket);
  // Stage 1 keeps this memory, which may have old gradients of parameters that have no gradient in this
  // step. Clear them.
  for (size_t k = 0; k < bucket.parameters.size(); ++k) {
    if (!parameters_[bucket.parameters[k]].grad().defined()) ViewOf(bucket, k, bucket.gradients).zero_();
  }
  if (reducer_) {
    reductions_.push_back({.bucket = index, .input = {}, .output = {}, .work = StartReducer(bucket)});
    return;
  }
  if (!reduced_before_) rank_squares_.Add(bucket.gradients);
  Reduction reduction{
      .bucket = index, .input = bucket.gradients.to(options_.wire_type), .output = {}, .work = {}};
  reduction.output = at::empty_like(bucket.own_values, reduction.input.options());
  reduction.work = communicator_.StartReduceScatter(reduction.output, reduction.input, ReduceOp::kAverage);
  cost_.bytes += static_cast<int64_t>(reduction.input.nbytes());
  reductions_.push_back(std::move(reduction));
}

std::unique_ptr<Work> ZeroStrategy::StartReducer(const Bucket& bucket) {
  GradientBucket whole;
  whole.parameters = bucket.parameters;
  whole.flat = bucket.gradients;
  for (size_t k = 0; k < bucket.parameters.size(); ++k) whole.views.push_back(ViewOf(bucket, k, whole.flat));
  whole.tail = whole.flat.narrow(0, whole.flat.numel(), 0);
  return reducer_->Start(whole);
}

void ZeroStrategy::FinishReduction() {
  const at::NoGradGuard no_grad;
  const Reduction reduction = std::move(reductions_.front());
  reductions_.erase(reductions_.begin());
  reduction.work->Wait();
  if (Span span = reduction.work->span(); span.end != nullptr) cost_.spans.push_back(std::move(span));
  Bucket& bucket = buckets_[reduction.bucket];
  if (options_.stage == 1) {
    const int64_t share = bucket.own_values.numel();
    bucket.own_gradients = bucket.gradients.narrow(0, share * communicator_.rank(), share);
    if (!reducer_) bucket.own_gradients.copy_(reduction.output);
    return;
  }
  if (!bucket.own_gradients.defined()) bucket.own_gradients = at::zeros_like(bucket.own_values);
  reduced_before_ ? bucket.own_gradients.add_(reduction.output)
                  : bucket.own_gradients.copy_(reduction.output);
  for (int parameter : bucket.parameters) parameters_[parameter].mutable_grad().reset();
  memory_.now -= static_cast<int64_t>(bucket.gradients.nbytes());
  bucket.gradients.reset();
}

// Sums two things in one small operation: which parameters were used, and the squared norms of the
// ranks' own parts.
at::Tensor ZeroStrategy::AgreeOnUnused() {
  const at::NoGradGuard no_grad;
  for (const Bucket& bucket : buckets_) own_squares_.Add(bucket.own_gradients);
  const at::Tensor own_square = own_squares_.Take();
  const at::Tensor flags = at::tensor(used_, at::kDouble).to(own_square.device());
  const at::Tensor sums = at::cat({flags, own_square.view(1)});
  communicator_.AllReduce(sums, ReduceOp::kSum);
  // If this rank has used all parameters, no rank drops any. Skipping the copy avoids waiting for the GPU.
  const bool all = std::ranges::all_of(used_, [](double used) { return used > 0; });
  const at::Tensor on_host = all ? at::Tensor() : sums.to(at::kCPU);
  for (Bucket& bucket : buckets_) {
    for (Piece& piece : bucket.pieces) {
      if (!all && static_cast<const double*>(on_host.data_ptr())[piece.parameter] == 0) continue;
      piece.value.mutable_grad() =
          bucket.own_gradients.narrow(0, piece.offset, piece.value.numel()).view_as(piece.value);
    }
  }
  if (options_.static_graph && !all) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      never_used_[i] = static_cast<const double*>(on_host.data_ptr())[i] == 0;
    }
  }
  return sums[static_cast<int64_t>(used_.size())];
}

void ZeroStrategy::GatherParameters() {
  const at::NoGradGuard no_grad;
  std::vector<std::unique_ptr<Work>> works;
  for (const Bucket& bucket : buckets_)
    works.push_back(communicator_.StartAllGather(bucket.values, bucket.own_values));
  for (const auto& work : works) {
    work->Wait();
    if (Span span = work->span(); span.end != nullptr) cost_.spans.push_back(std::move(span));
  }
}

void ZeroStrategy::SyncBuffers() {
  for (const at::Tensor& buffer : model_.buffers()) communicator_.Broadcast(buffer, 0);
}

// From EndEpoch to the next step, a rank in stage 3 also has the parameters of the other ranks.
ModelMemory ZeroStrategy::Memory(const ModelMemory& found) const {
  ModelMemory memory{.parameters = 0, .gradients = 0, .optimizer = found.optimizer};
  for (const Bucket& bucket : buckets_) {
    memory.parameters += BytesOf({gathered_ ? bucket.own_values : bucket.values});
    memory.gradients += BytesOf({options_.stage == 1 ? bucket.gradients : bucket.own_gradients});
  }
  if (reducer_) memory.gradients += reducer_->ErrorBytes();
  return memory;
}

ModelMemory ZeroStrategy::MemoryByFormula(double parameters) const {
  const double part = parameters / communicator_.size(),
               errors = reducer_ ? reducer_->ErrorBytesByFormula(parameters_) : 0;
  return {.parameters = options_.stage > 2 ? part : parameters,
          .gradients = options_.stage > 1 ? part : parameters + errors,
          .optimizer = part};
}

void ZeroStrategy::AppendMetrics(std::vector<Metric>& metrics) const {
  if (reducer_) reducer_->AppendMetrics(metrics);
  metrics.emplace_back("memory/buckets_bytes", options_.stage == 1 ? 0 : static_cast<double>(memory_.most));
}

}  // namespace scalelab::trainer
