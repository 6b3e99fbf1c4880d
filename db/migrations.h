// The schema as a list of steps; step i brings a database from version i to version i + 1.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace scalelab::db {

class Database;

// "ScLb": tells our files from other SQLite databases.
inline constexpr int64_t kApplicationId = 0x53634c62;

// SQL of every step, oldest first. A step that was released is never changed; a change of the schema is a new
// one.
const std::vector<std::string>& Migrations();

// Brings `db` (an empty database or one of ours) to the newest version, each step in a transaction of its
// own. FAILED_PRECONDITION when it is another program's or newer than this program.
absl::Status Migrate(Database& db);

}  // namespace scalelab::db
