// Loads the coordinator's state from the database, at a start and after a failed commit.
#pragma once

#include "absl/status/statusor.h"
#include "db/store.h"
#include "server/core/state.h"

namespace scalelab::server {

// Returns everything that is not final. Worker timeouts start at `now`.
absl::StatusOr<State> LoadState(db::Store& store, db::Micros now);

}  // namespace scalelab::server
