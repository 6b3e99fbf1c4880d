#include "server/core/blocks.h"

#include <algorithm>

namespace scalelab::server {
namespace {

// Returns the position after the last run of the block.
int EndOf(const LiveStudy& study, int block) { return (block + 1) * static_cast<int>(study.cells.size()); }

int ShapeOfRun(const LiveStudy& study, int position) {
  if (study.shapes.size() == 1) return 0;
  const int ranks = study.cells.Int(study.cell_of[position], v1::RunSpec::kRanksFieldNumber);
  return ShapeWithNodes(study.shapes, NodesFor(ranks, study.shapes[0]));
}

}  // namespace

BlockPart PartOf(const LiveStudy& study, int position) {
  return {study.runs[position].repeat, ShapeOfRun(study, position)};
}

int ShapeIndexOf(const LiveStudy& study, const LiveAllocation& allocation) {
  return ShapeWithNodes(study.shapes, allocation.row.nodes);
}

void VisitQueuedParts(const LiveStudy& study, absl::FunctionRef<bool(BlockPart, int)> visit) {
  std::vector<int> first(study.shapes.size());
  for (auto it = study.queued.begin(); it != study.queued.end();) {
    const int block = study.runs[*it].repeat;
    const int end = EndOf(study, block);
    std::fill(first.begin(), first.end(), -1);
    size_t found = 0;
    for (; it != study.queued.end() && *it < end && found < first.size(); ++it) {
      int& of_shape = first[ShapeOfRun(study, *it)];
      if (of_shape >= 0) continue;
      of_shape = *it;
      ++found;
    }
    for (size_t shape = 0; shape < first.size(); ++shape) {
      if (first[shape] >= 0 && !visit({block, static_cast<int>(shape)}, first[shape])) return;
    }
    it = study.queued.lower_bound(end);
  }
}

void VisitQueuedRuns(const LiveStudy& study, BlockPart part, absl::FunctionRef<bool(int)> visit) {
  const int end = EndOf(study, part.block);
  for (auto it = study.queued.lower_bound(EndOf(study, part.block - 1));
       it != study.queued.end() && *it < end; ++it) {
    if (ShapeOfRun(study, *it) == part.shape && !visit(*it)) return;
  }
}

bool HasQueuedRuns(const LiveStudy& study, BlockPart part) {
  bool found = false;
  VisitQueuedRuns(study, part, [&](int) {
    found = true;
    return false;
  });
  return found;
}

std::vector<int> AllQueued(const LiveStudy& study) {
  std::vector<int> positions(study.queued.begin(), study.queued.end());
  positions.insert(positions.end(), study.later.begin(), study.later.end());
  return positions;
}

bool OthersHold(const LiveStudy& study, const LiveAllocation& allocation, BlockPart part) {
  return study.allocations.HolderOf(part, allocation.row.id) != 0;
}

bool IsBusy(const LiveStudy& study, const LiveAllocation& allocation) {
  return allocation.attempt_id != 0 ||
         (allocation.part.has_value() && HasQueuedRuns(study, *allocation.part));
}

std::optional<int> NextShape(const LiveStudy& study) {
  std::vector<int> idle(study.shapes.size());  // number of allocations of each shape that will begin a part
  for (const auto& [id, allocation] : study.allocations.unoccupied()) {
    if (!allocation.part || !HasQueuedRuns(study, *allocation.part))
      ++idle[ShapeWithNodes(study.shapes, allocation.nodes)];
  }
  std::optional<int> next;
  VisitQueuedParts(study, [&](BlockPart part, int) {
    if (study.allocations.HolderOf(part) != 0 || idle[part.shape]-- > 0) return true;
    next = part.shape;
    return false;
  });
  return next;
}

}  // namespace scalelab::server
