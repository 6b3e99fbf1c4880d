#include "worker/trainer/strategies/gathered_parameters.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

#include "worker/trainer/errors.h"
#include "worker/trainer/metrics/kept_allocations.h"

namespace scalelab::trainer {
namespace {

// LibTorch passes this kind of information to the threads of autograd, and does not use it itself.
constexpr auto kKind = c10::DebugInfoKind::PRODUCER_INFO;

// A function that a thread calls before each of its operations.
struct BeforeOperation : public c10::DebugInfoBase {
  explicit BeforeOperation(std::function<void(const at::RecordFunction&)> f) : run(std::move(f)) {}
  const std::function<void(const at::RecordFunction&)> run;
};

std::unique_ptr<at::ObserverContext> OnOperation(const at::RecordFunction& operation) {
  auto* const before = static_cast<BeforeOperation*>(c10::ThreadLocalDebugInfo::get(kKind));
  if (before != nullptr) before->run(operation);
  return nullptr;
}

// Changes the size of the memory that all tensors with the storage of `tensor` share.
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
    const UncountedAllocations uncounted;  // gathered parameters are not activations
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
    // LibTorch ignores exceptions here, so the operation will run. Allocate memory without values for it.
    for (const size_t block : blocks) Allocate(blocks_[block]);
  });
}

void GatheredParameters::Add(const at::Tensor& whole, const at::Tensor& own) {
  block_of_[whole.storage().unsafeGetStorageImpl()] = blocks_.size();
  Block& block = blocks_.emplace_back(Block{.whole = whole, .own = own, .present = true, .work = {}});
  memory_.now += static_cast<int64_t>(whole.nbytes());
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
  memory_.now += bytes;
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
  } else if (communicator_.rank() == 0) {
    if (backward_) AnnounceReductions();
    Announce(static_cast<int64_t>(block));
    Follow();
  } else {
    FollowRankZero(block);
  }
  Finish(blocks_[block]);
}

// In the first pass, rank 0 sends the next item of the plan, and the other ranks receive it.
void GatheredParameters::Announce(int64_t item) {
  const at::NoGradGuard no_grad;
  const at::Tensor sent = at::full({1}, item, at::kLong);
  communicator_.Broadcast(sent, 0);
  item = sent.item<int64_t>();
  phase_ended_ = item == kEndOfPhase;
  if (!phase_ended_) plan_.push_back(item);
}

// In the first pass, sends and starts the reductions whose gradients have arrived on rank 0.
void GatheredParameters::AnnounceReductions() {
  announcing_ = true;
  reduce_full_();
  announcing_ = false;
}

// In the first pass, executes the items that rank 0 sends, until rank 0 uses `block` or has ended the phase.
void GatheredParameters::FollowRankZero(size_t block) {
  while (!phase_ended_) {
    Announce(kReduction);  // the item of rank 0 replaces the argument
    if (phase_ended_) break;
    Follow();
    if (block != kNone && plan_.back() == static_cast<int64_t>(block)) return;
  }
  while (block != kNone && !blocks_[block].present) RequestBlock(block);
}

// Ends a phase of the first pass, when no rank needs a further block in this phase.
void GatheredParameters::EndPhase() {
  if (communicator_.rank() == 0) {
    if (backward_) AnnounceReductions();
    Announce(kEndOfPhase);
  } else {
    FollowRankZero(kNone);
  }
  while (RequestBlock(kNone)) {
  }
  phase_ended_ = false;
}

// Gathers the blocks that other ranks need and rank 0 has not used, and keeps them at least until the end of the pass.
// Returns whether any rank needs such a block.
bool GatheredParameters::RequestBlock(size_t block) {
  const at::NoGradGuard no_grad;
  const at::Tensor needed = at::zeros({std::ssize(blocks_)}, at::kLong);
  auto* const ranks = static_cast<int64_t*>(needed.data_ptr());  // by block: how many ranks need it
  if (block != kNone) ranks[block] = 1;
  communicator_.AllReduce(needed, ReduceOp::kSum);
  bool any = false;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (ranks[i] == 0) continue;
    any = blocks_[i].kept = true;
    Start(i);
    Finish(blocks_[i]);
  }
  return any;
}

// Ends the first pass.
void GatheredParameters::SetPlanned() {
  planned_ = true;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].kept = std::ranges::find(plan_, static_cast<int64_t>(i)) == plan_.end();
    if (blocks_[i].kept) Start(i);
  }
}

// Executes the next item of the plan.
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
  memory_.Record();
}

// Returns the block that the plan uses next.
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
  memory_.now -= static_cast<int64_t>(block.whole.nbytes());
}

void GatheredParameters::FreeAll() {
  for (Block& block : blocks_) Free(block);
}

void GatheredParameters::GatherAll() {
  for (size_t i = 0; i < blocks_.size(); ++i) Start(i);
  for (Block& block : blocks_) Finish(block);
}

void GatheredParameters::BeginStep() {
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
  if (!planned_) {
    EndPhase();
    backward_begin_ = plan_.size();
  }
  while (next_ < backward_begin_) Follow();
  backward_ = true;
  used_ = kNone;
}

void GatheredParameters::EndPass() {
  const at::DisableRecordFunctionGuard no_operations;
  Check();
  if (!planned_) {
    EndPhase();
    SetPlanned();
  }
  while (next_ < plan_.size()) Follow();
}

void GatheredParameters::EndStep() { FreeAll(); }

void GatheredParameters::Reduces() {
  if (!planned_) Announce(kReduction);
  ++next_;
}

}  // namespace scalelab::trainer
