#include "worker/trainer/strategies/gathered_parameters.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// The only kind of information that LibTorch passes on to the threads of autograd and does not use itself.
constexpr auto kKind = c10::DebugInfoKind::PRODUCER_INFO;

// What a thread does before each of its operations.
struct BeforeOperation : public c10::DebugInfoBase {
  explicit BeforeOperation(std::function<void(const at::RecordFunction&)> f) : run(std::move(f)) {}
  const std::function<void(const at::RecordFunction&)> run;
};

std::unique_ptr<at::ObserverContext> OnOperation(const at::RecordFunction& operation) {
  auto* const before = static_cast<BeforeOperation*>(c10::ThreadLocalDebugInfo::get(kKind));
  if (before != nullptr) before->run(operation);
  return nullptr;
}

// Sets the memory that all tensors with the storage of `tensor` share.
void SetMemory(const at::Tensor& tensor, size_t bytes) {
  const at::Storage& storage = tensor.storage();
  storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  storage.set_nbytes(bytes);
}

class OperationWatch : public GatheredParameters::Watch {
 public:
  explicit OperationWatch(std::function<void(const at::RecordFunction&)> before)
      : information_(kKind, std::make_shared<BeforeOperation>(std::move(before))),
        callback_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(OnOperation).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}
  OperationWatch(const OperationWatch&) = delete;
  OperationWatch& operator=(const OperationWatch&) = delete;
  ~OperationWatch() override { at::removeCallback(callback_); }

 private:
  const c10::DebugInfoGuard information_;
  const at::CallbackHandle callback_;
};

}  // namespace

std::unique_ptr<GatheredParameters::Watch> GatheredParameters::StartWatch() {
  return std::make_unique<OperationWatch>([this](const at::RecordFunction& operation) {
    const at::DisableRecordFunctionGuard no_operations;
    std::vector<size_t> blocks;
    try {
      for (const c10::IValue& input : operation.inputs()) {
        if (input.isTensor()) AddBlockOf(input.toTensor(), blocks);
        if (!input.isTensorList()) continue;
        for (const at::Tensor& tensor : input.toTensorVector()) AddBlockOf(tensor, blocks);
      }
      if (!failure_) return UseAll(blocks);
    } catch (...) {
      failure_ = std::current_exception();
    }
    // LibTorch ignores exceptions here. So that the operation can run, blocks get memory without values.
    for (const size_t block : blocks) Allocate(blocks_[block]);
  });
}

void GatheredParameters::Add(const at::Tensor& whole, const at::Tensor& own) {
  block_of_[whole.storage().unsafeGetStorageImpl()] = blocks_.size();
  Block& block = blocks_.emplace_back(Block{.whole = whole, .own = own, .present = true, .work = {}});
  present_bytes_ += static_cast<int64_t>(whole.nbytes());
  Free(block);
}

void GatheredParameters::AddBlockOf(const at::Tensor& tensor, std::vector<size_t>& blocks) const {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const auto found = block_of_.find(tensor.storage().unsafeGetStorageImpl());
  if (found != block_of_.end() && std::ranges::find(blocks, found->second) == blocks.end())
    blocks.push_back(found->second);
}

void GatheredParameters::UseAll(const std::vector<size_t>& blocks) {
  for (const size_t block : blocks) Use(block);
  for (const size_t block : blocks) {
    if (blocks_[block].present) continue;
    throw TrainerError(
        "an operation uses parameters of more than two buckets, or in another order than in the first step: "
        "increase bucket_cap_mib, or use native/zero2");
  }
}

void GatheredParameters::Allocate(Block& block) {
  if (block.present) return;
  const auto bytes = static_cast<int64_t>(block.whole.nbytes());
  SetMemory(block.whole, bytes);
  block.present = true;
  present_bytes_ += bytes;
}

void GatheredParameters::Check() {
  if (failure_) std::rethrow_exception(failure_);
}

void GatheredParameters::Use(size_t block) {
  if (block == used_) return;
  used_ = block;
  if (planned_) {
    const auto begin = plan_.begin() + static_cast<int64_t>(next_);
    const auto end = backward_ ? plan_.end() : plan_.begin() + static_cast<int64_t>(backward_begin_);
    if (const auto found = std::find(begin, end, static_cast<int64_t>(block)); found != end) {
      const auto last = static_cast<size_t>(found - plan_.begin());
      while (next_ <= last) Follow();
    }
  } else if (recording_) {
    plan_.push_back(static_cast<int64_t>(block));
  }
  Finish(blocks_[block]);
}

// Carries out the next item of the plan.
void GatheredParameters::Follow() {
  const int64_t item = plan_[next_++];
  if (item == kReduction) return reduce_();
  planned_before_ = std::exchange(planned_now_, static_cast<size_t>(item));
  const size_t after = NextUse();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (i != planned_before_ && i != planned_now_ && i != after && !blocks_[i].kept) Free(blocks_[i]);
  }
  Start(planned_now_);
  if (after != kNone) Start(after);
  most_bytes_ = std::max(most_bytes_, present_bytes_);
}

// Returns the block that is used next by the plan.
size_t GatheredParameters::NextUse() const {
  for (size_t i = next_; i < plan_.size(); ++i) {
    if (plan_[i] != kReduction) return static_cast<size_t>(plan_[i]);
  }
  return kNone;
}

void GatheredParameters::Start(size_t index) {
  Block& block = blocks_[index];
  if (block.present) return;
  const at::NoGradGuard no_grad;
  Allocate(block);
  bytes_ += static_cast<int64_t>(block.whole.nbytes());
  block.work = communicator_.StartAllGather(block.whole, block.own);
}

void GatheredParameters::Finish(Block& block) {
  if (!block.work) return;
  const std::unique_ptr<Work> work = std::move(block.work);
  work->Wait();
  if (Span span = work->span(); span.end != nullptr) spans_.push_back(std::move(span));
}

void GatheredParameters::Free(Block& block) {
  if (!block.present) return;
  Finish(block);
  SetMemory(block.whole, 0);
  block.present = false;
  present_bytes_ -= static_cast<int64_t>(block.whole.nbytes());
}

void GatheredParameters::FreeAll() {
  for (Block& block : blocks_) Free(block);
}

void GatheredParameters::GatherAll() {
  for (size_t i = 0; i < blocks_.size(); ++i) Start(i);
  for (Block& block : blocks_) Finish(block);
}

void GatheredParameters::BeginStep() {
  if (!planned_) return GatherAll();
  FreeAll();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].kept) Start(i);
  }
}

void GatheredParameters::BeginPass() {
  next_ = 0;
  backward_ = false;
  used_ = planned_before_ = planned_now_ = kNone;
  if (const size_t first = planned_ ? NextUse() : kNone; first != kNone) Start(first);
}

void GatheredParameters::BeginBackward() {
  const at::DisableRecordFunctionGuard no_operations;
  Check();
  backward_ = true;
  if (recording_) backward_begin_ = plan_.size();
  used_ = kNone;
  while (planned_ && next_ < backward_begin_) Follow();
}

void GatheredParameters::EndPass() {
  const at::DisableRecordFunctionGuard no_operations;
  Check();
  recording_ = false;
  while (planned_ && next_ < plan_.size()) Follow();
}

void GatheredParameters::EndStep() {
  if (!planned_) AgreeOnPlan();
  FreeAll();
}

void GatheredParameters::Reduced() {
  if (planned_) {
    ++next_;
  } else if (recording_) {
    plan_.push_back(kReduction);
  }
}

// Takes the plan of rank 0.
void GatheredParameters::AgreeOnPlan() {
  plan_.push_back(static_cast<int64_t>(backward_begin_));
  const at::Tensor size = at::full({1}, std::ssize(plan_), at::kLong);
  communicator_.Broadcast(size, 0);
  plan_.resize(size.item<int64_t>());
  const at::Tensor plan = at::from_blob(plan_.data(), {std::ssize(plan_)}, at::kLong);
  communicator_.Broadcast(plan, 0);
  backward_begin_ = static_cast<size_t>(plan_.back());
  plan_.pop_back();
  planned_ = true;
  for (size_t i = 0; i < blocks_.size(); ++i)
    blocks_[i].kept = std::ranges::find(plan_, static_cast<int64_t>(i)) == plan_.end();
}

}  // namespace scalelab::trainer
