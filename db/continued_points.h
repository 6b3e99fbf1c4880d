// Points of an attempt that continued from a checkpoint, together with those of the attempts before it.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "db/store.h"

namespace scalelab::db {

// Returns the attempts that the steps of attempt `number` build on, newest first: it, and, if it continued from a checkpoint,
// those before it. `attempts` are those of the run, ordered by number. Empty if there is none of this number.
std::vector<AttemptRow> AttemptsContinued(const std::vector<AttemptRow>& attempts, int number);

// Calls `take` for each series like Store::ReadPoints, in the same order. A series has each step once: from an earlier attempt
// only the steps before those of the attempt that continued it. `attempts` is the result of AttemptsContinued, and
// `filter.attempt_id` is ignored. Holds all series in memory if there are several attempts.
absl::Status ReadContinuedPoints(Store& store, const std::vector<AttemptRow>& attempts, PointFilter filter,
                                 const std::function<void(Series)>& take);

}  // namespace scalelab::db
