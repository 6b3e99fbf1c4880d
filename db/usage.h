// Reads the use of allocations, as a part of Store::Load.
#pragma once

#include "absl/status/status.h"
#include "db/sqlite/sqlite.h"
#include "db/store.h"

namespace scalelab::db {

// Fills in attempts_served, unused_allocations and gpu_seconds for the studies and allocations of the snapshot.
absl::Status ReadUseOfAllocations(Database& db, Snapshot& snapshot);

}  // namespace scalelab::db
