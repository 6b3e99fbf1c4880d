// Decides which allocation of a study executes which runs. Pure functions.
//
// A block is one repeat of all cells. With AllocationMode GROUP, an allocation executes whole blocks, one
// after another, so that the runs of a block use the same nodes. If the study has allocations of several
// shapes, a block has a part for each shape. An allocation holds the part of its newest attempt, until it
// executes a run of another part, is released or ends. These decisions depend only on rows of the database,
// so they are the same after a restart.
#pragma once

#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/core/state.h"

namespace scalelab::server {

// Returns the part that a run belongs to.
BlockPart PartOf(const LiveStudy& study, int position);
// Returns the index of the allocation's shape in `study.shapes`.
int ShapeIndexOf(const LiveStudy& study, const LiveAllocation& allocation);

// Calls `visit` with each part that has queued runs and the position of its first queued run, in the order of
// execution. Stops when `visit` returns false.
void VisitQueuedParts(const LiveStudy& study, absl::FunctionRef<bool(BlockPart, int)> visit);
// Calls `visit` with the position of each queued run of the part, in order. Stops when `visit` returns false.
void VisitQueuedRuns(const LiveStudy& study, BlockPart part, absl::FunctionRef<bool(int)> visit);
// Returns the positions of all queued runs, including those that are held back.
std::vector<int> AllQueued(const LiveStudy& study);
// Returns whether no run is queued, and the study has further blocks that begin only if the results so far
// are not precise enough.
inline bool WaitsForAssessment(const LiveStudy& study) {
  return study.queued.empty() && !study.later.empty();
}
bool HasQueuedRuns(const LiveStudy& study, BlockPart part);

// Returns whether an allocation other than `allocation` holds the part.
bool OthersHold(const LiveStudy& study, const LiveAllocation& allocation, BlockPart part);
// Returns whether the allocation has an attempt, or holds a part with queued runs.
bool IsBusy(const LiveStudy& study, const LiveAllocation& allocation);
// Returns the shape of the next allocation of a group: an index into `study.shapes`. Returns nothing if every
// part with queued runs has an allocation, or an idle allocation will execute it.
std::optional<int> NextShape(const LiveStudy& study);

}  // namespace scalelab::server
