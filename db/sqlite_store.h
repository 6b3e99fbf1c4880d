// The Store in one SQLite file: WAL, synchronous=FULL, one connection that writes, a few that only read.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "db/store.h"

namespace scalelab::db {

struct SqliteOptions {
  std::string path;
  // Use a rollback journal instead of WAL, the only mode that is safe on a network filesystem; without it a database
  // there is refused.
  bool rollback_journal = false;
  int readers = 4;
};

// Opens or creates the database and brings it to the newest schema. FAILED_PRECONDITION with a sentence that says what
// to do: no scalelab database (application_id), a newer schema, a network filesystem, no permission, read-only folder.
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const SqliteOptions& options);

// Number of the newest schema (user_version).
int NewestSchema();

}  // namespace scalelab::db
