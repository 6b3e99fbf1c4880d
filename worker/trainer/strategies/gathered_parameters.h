// Parameters of which each rank stores a part. The rest is gathered only while operations use it: stage 3 of
// ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 5.3).
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

// The memory of gathered blocks and of gradients that are not reduced yet, in bytes.
struct BucketMemory {
  int64_t now = 0, most = 0;  // `most` is the greatest value of `now` that was recorded
  void Record() { most = std::max(most, now); }
};

// A block of parameters is gathered from all ranks before an operation of forward or backward uses it. At the
// same time, the block that the plan uses next is gathered. The memory of a block is freed after two other
// blocks have been used.
//
// All ranks follow a plan: the order in which operations use blocks and reductions of gradients start.
// Therefore they start the same collective operations in the same order, even if some ranks use fewer
// parameters in a step or have no samples for a pass. In the first pass, rank 0 makes the plan. It sends each
// item before it executes the item, and blocks are not gathered in advance. The other ranks receive items
// where an operation uses a block and at the end of a phase, so rank 0 sends items only there: the model
// itself may communicate between these points, as synchronous batch normalization does. When rank 0 has ended
// forward or backward of this pass, the other ranks request the blocks that they still need. Blocks that are
// not in the plan are gathered at the beginning of each step.
class GatheredParameters {
 public:
  // `reduce` must start the next reduction of gradients, even if some of the gradients have not arrived.
  // `reduce_full` must start the reductions whose gradients have arrived, while MayReduce returns true.
  // `memory` counts the blocks, and must outlive this object. GatherAll does not record it.
  GatheredParameters(Communicator& communicator, std::function<void()> reduce,
                     std::function<void()> reduce_full, BucketMemory& memory)
      : communicator_(communicator),
        reduce_(std::move(reduce)),
        reduce_full_(std::move(reduce_full)),
        memory_(memory) {}

  // Adds a block and frees its memory, which the parameters share. `whole` must begin at the beginning
  // of this memory.
  void Add(const at::Tensor& whole, const at::Tensor& own);

  // Observes operations on the calling thread, and on the autograd threads that work for the calling thread.
  class Watch {
   public:
    virtual ~Watch() = default;
  };
  std::unique_ptr<Watch> StartWatch();

  // Mark the parts of a step. A step has one or more passes, and each pass has the phases forward
  // and backward. Collective.
  void BeginStep();
  void BeginPass();
  void BeginBackward();
  void EndPass();
  void EndStep();

  // Returns whether the caller may start a reduction now. The caller must report each reduction
  // before its start.
  bool MayReduce() const {
    return planned_ ? next_ < plan_.size() && plan_[next_] == kReduction : announcing_;
  }
  void Reduces();

  // Throws if an operation has used a block that could not be gathered. The operation itself cannot throw.
  void Check();

  // Gathers all blocks and keeps them until the next step. Collective.
  void GatherAll();

  // Return the number of bytes that were gathered since the last call, and the times of these operations.
  int64_t TakeBytes() { return std::exchange(bytes_, 0); }
  std::vector<Span> TakeSpans() { return std::exchange(spans_, {}); }

 private:
  static constexpr int64_t kReduction = -1;   // an item of the plan; the other items are numbers of blocks
  static constexpr int64_t kEndOfPhase = -2;  // rank 0 sends it after the last item of forward or backward
  static constexpr size_t kNone = SIZE_MAX;

  struct Block {
    at::Tensor whole, own;
    bool present = false;        // whether it has memory
    bool kept = false;           // whether it stays gathered, because it is not part of the plan
    std::unique_ptr<Work> work;  // the operation that gathers it; null if the values are in place
  };

  void UseAll(const std::vector<size_t>& blocks);
  void Use(size_t block);
  void Follow();
  void Announce(int64_t item);
  void AnnounceReductions();
  void FollowRankZero(size_t block);
  void EndPhase();
  bool RequestBlock(size_t block);
  void SetPlanned();
  size_t NextUse() const;
  void Start(size_t block);
  void Allocate(Block& block);
  void Finish(Block& block);
  void Free(Block& block);
  void FreeAll();
  void AddBlockOf(const at::Tensor& tensor, std::vector<size_t>& blocks) const;

  Communicator& communicator_;
  const std::function<void()> reduce_, reduce_full_;
  BucketMemory& memory_;
  std::vector<Block> blocks_;
  std::unordered_map<const void*, size_t> block_of_;  // by memory

  std::vector<int64_t> plan_;  // items of a pass
  size_t backward_begin_ = 0;  // index of the first item of backward
  bool planned_ = false;       // whether the first pass has ended
  bool phase_ended_ = false;   // first pass: whether rank 0 has ended the current phase of this rank
  bool announcing_ = false;    // first pass, rank 0: whether the other ranks receive items now
  bool backward_ = false;      // whether the current phase is backward
  size_t next_ = 0;            // index of the next item
  size_t used_ = kNone, planned_before_ = kNone, planned_now_ = kNone;  // blocks
  std::exception_ptr failure_;

  int64_t bytes_ = 0;
  std::vector<Span> spans_;
};

}  // namespace scalelab::trainer
