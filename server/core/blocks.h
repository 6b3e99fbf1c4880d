// Which allocation of a study serves which of its runs. Pure.
//
// With AllocationMode GROUP, an allocation serves whole blocks, one after another, so that the runs of a block use the
// same nodes. If the study has allocations of several shapes, a block has a part for each shape. A part belongs to the
// allocation that holds it: the one whose newest attempt is of this part, until it serves another part, is released or
// ends. All of this follows from rows of the database, so that a restart changes nothing.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/core/state.h"

namespace scalelab::server {

// Returns whether the allocation has, or may get, an attempt: it counts for the limit of its study, and no other
// allocation serves its part.
bool Holds(const LiveAllocation& allocation);
// Returns the number of the study's allocations that hold.
int CountHolding(const State& state, const LiveStudy& study);

// Returns the part that a run belongs to.
BlockPart PartOf(const LiveStudy& study, int position);
// Returns the index of the allocation's shape in `study.shapes`.
int ShapeIndexOf(const LiveStudy& study, const LiveAllocation& allocation);

// Calls `visit` for each part that has queued runs, in the order in which they are served, with the position of its first
// queued run, until `visit` returns false.
void VisitQueuedParts(const LiveStudy& study, absl::FunctionRef<bool(BlockPart, int)> visit);
// Calls `visit` for the position of each queued run of the part, in order, until `visit` returns false.
void VisitQueuedRuns(const LiveStudy& study, BlockPart part, absl::FunctionRef<bool(int)> visit);
// Returns the positions of all queued runs, also of those that are held back.
std::vector<int> AllQueued(const LiveStudy& study);
// Returns whether the study has blocks that begin only if the results of those before them are not precise enough, and the
// latter are complete or being completed.
inline bool WaitsForAssessment(const LiveStudy& study) {
  return study.queued.empty() && !study.later.empty();
}
bool HasQueuedRuns(const LiveStudy& study, BlockPart part);

// Returns the parts that allocations other than `allocation` hold.
std::set<BlockPart> PartsOfOthers(const State& state, const LiveStudy& study,
                                  const LiveAllocation& allocation);
// Returns the allocation that holds the part, or null.
const LiveAllocation* HolderOf(const State& state, const LiveStudy& study, BlockPart part);
// Returns whether the allocation serves a part that is not over.
bool IsBusy(const LiveStudy& study, const LiveAllocation& allocation);
// Returns the shape of the next allocation of a group: an index into `study.shapes`. Returns nothing if every part with
// queued runs has an allocation, or will be served by one that has no part.
std::optional<int> NextShape(const State& state, const LiveStudy& study);

}  // namespace scalelab::server
