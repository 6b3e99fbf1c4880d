// Parameters of which each rank keeps a part, and which are whole only while operations use them: stage 3 of ZeRO (Rajbhandari
// et al. 2020, arXiv 1910.02054, section 5.3).
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

// A block of parameters is gathered from all ranks before an operation of forward or backward uses it, at the same time as
// the block that is used next. Its memory is freed when two other blocks have been used after it.
//
// In the first step all blocks are gathered, and rank 0 records the plan: the order in which operations use blocks and
// reductions of gradients start. From the second step on all ranks follow it. So they start the same collective operations
// in the same order, also if some of them use fewer parameters in a step or have no samples for a pass. A block that
// rank 0 did not use in the first step is gathered at the begin of each step.
class GatheredParameters {
 public:
  // `reduce` starts the next reduction of gradients, whether all of them have arrived or not.
  GatheredParameters(Communicator& communicator, std::function<void()> reduce)
      : communicator_(communicator), reduce_(std::move(reduce)) {}

  // Adds a block and frees it. `whole` begins at the begin of its memory, which the parameters share.
  void Add(const at::Tensor& whole, const at::Tensor& own);

  // Observes operations on the calling thread, and on threads of autograd that work for it.
  class Watch {
   public:
    virtual ~Watch() = default;
  };
  std::unique_ptr<Watch> StartWatch();

  // The parts of a step, which has one or more passes. Collective.
  void BeginStep();
  void BeginPass();
  void BeginBackward();
  void EndPass();
  void EndStep();

  // Returns whether a reduction may start now. The caller reports each that it has started.
  bool MayReduce() const { return !planned_ || (next_ < plan_.size() && plan_[next_] == kReduction); }
  void Reduced();

  // Throws if an operation was to use a block that could not be gathered. Operations cannot throw themselves.
  void Check();

  // Gathers all blocks and keeps them until the next step. Collective.
  void GatherAll();

  // Returns the bytes that were gathered, and when, since the last call.
  int64_t TakeBytes() { return std::exchange(bytes_, 0); }
  std::vector<Span> TakeSpans() { return std::exchange(spans_, {}); }
  // Returns the most bytes of gathered blocks at a time while the plan was followed.
  int64_t most_bytes() const { return most_bytes_; }

 private:
  static constexpr int64_t kReduction = -1;  // in the plan, besides the numbers of blocks
  static constexpr size_t kNone = SIZE_MAX;

  struct Block {
    at::Tensor whole, own;
    bool present = false;        // has memory
    bool kept = false;           // is not part of the plan
    std::unique_ptr<Work> work;  // null if the values are in place
  };

  void UseAll(const std::vector<size_t>& blocks);
  void Use(size_t block);
  void Follow();
  size_t NextUse() const;
  void Start(size_t block);
  void Allocate(Block& block);
  void Finish(Block& block);
  void Free(Block& block);
  void FreeAll();
  void AgreeOnPlan();
  void AddBlockOf(const at::Tensor& tensor, std::vector<size_t>& blocks) const;

  Communicator& communicator_;
  const std::function<void()> reduce_;
  std::vector<Block> blocks_;
  std::unordered_map<const void*, size_t> block_of_;  // by memory

  std::vector<int64_t> plan_;  // of a pass; rank 0 records it in the first one
  size_t backward_begin_ = 0;  // in the plan
  bool recording_ = true, planned_ = false;
  bool backward_ = false;                                               // the pass is in backward
  size_t next_ = 0;                                                     // in the plan
  size_t used_ = kNone, planned_before_ = kNone, planned_now_ = kNone;  // blocks
  std::exception_ptr failure_;

  int64_t bytes_ = 0, present_bytes_ = 0, most_bytes_ = 0;
  std::vector<Span> spans_;
};

}  // namespace scalelab::trainer
