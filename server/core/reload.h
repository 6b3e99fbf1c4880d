// From the database to the coordinator's state: what a restart does.
#pragma once

#include "absl/status/statusor.h"
#include "db/store.h"
#include "server/core/state.h"

namespace scalelab::server {

// Everything that can still change. `now` counts as the last sign of life of every worker.
absl::StatusOr<State> LoadState(db::Store& store, db::Micros now);

}  // namespace scalelab::server
