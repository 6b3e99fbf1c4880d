// Points of an attempt that continued from a checkpoint, together with those of the attempts before it.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "db/store.h"

namespace scalelab::db {

// Returns the attempts that the steps of attempt `number` build on, newest first: the attempt itself and, if
// it continued from a checkpoint, those before it. `attempts` are the attempts of the run, ordered by number.
// Returns an empty list if none has this number.
std::vector<AttemptRow> AttemptsContinued(const std::vector<AttemptRow>& attempts, int number);

// Calls `take` for each series like Store::ReadPoints, in the same order. Each step occurs once in a series:
// of an earlier attempt, only the steps before the first step of its continuation are used. `attempts` is
// the result of AttemptsContinued, and `filter.attempt_id` is ignored. Holds all series in memory if there
// are several attempts.
absl::Status ReadContinuedPoints(Store& store, const std::vector<AttemptRow>& attempts, PointFilter filter,
                                 const std::function<void(Series)>& take);

}  // namespace scalelab::db
