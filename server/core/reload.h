// Loads the coordinator's state from the database, when the server starts and after a failed commit.
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "absl/status/statusor.h"
#include "db/store.h"
#include "server/core/effects.h"
#include "server/core/state.h"

namespace scalelab::server {

// Returns the state of everything that is not final. Timeouts of workers start at `now`.
absl::StatusOr<State> LoadState(db::Store& store, db::Micros now);

// Returns the studies that the decisions with these effects have changed in memory.
std::set<int64_t> StudiesOf(const Effects& fx, const State& state);

// Replaces these studies, with their allocations and attempts, by the rows in the database. Keeps the reports
// of workers and of the scheduler, which are not in the database. Changes nothing on an error.
absl::Status ReloadStudies(db::Store& store, const std::set<int64_t>& ids, db::Micros now, State& state);

// Returns a study that may be final, to retry its runs.
absl::StatusOr<std::unique_ptr<LiveStudy>> LoadFinalStudy(db::Store& store, int64_t id);

}  // namespace scalelab::server
