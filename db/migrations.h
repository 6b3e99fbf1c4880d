// The database schema as a list of migrations. Step i migrates a database from version i to version i + 1.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "db/sqlite/sqlite.h"

namespace scalelab::db {

// Returns the SQL of every step, oldest first. A released step never changes; a change of the schema is
// a new step.
const std::vector<std::string>& Migrations();

// Migrates `db`, an empty database or one of scalelab, to the newest version, each step in a separate
// transaction. Returns FAILED_PRECONDITION if the database belongs to another program or has a newer version
// than this program.
absl::Status Migrate(Database& db);

}  // namespace scalelab::db
