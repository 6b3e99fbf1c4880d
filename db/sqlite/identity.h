// The file next to a database that contains the database's identity. If the database is missing, empty or
// replaced by another one, this file shows that a database existed here.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "db/sqlite/sqlite.h"
#include "files/durable_file.h"

namespace scalelab::db {

// Checks, before the database `path` is opened for writing, that it is neither missing nor empty while its identity file
// exists. Returns FAILED_PRECONDITION with what to do.
absl::Status CheckDatabaseExists(const std::string& path, FileSystem& files);

// Compares the identity in `db`, whose schema is the newest, with the file; writes the file if there is none. Returns
// FAILED_PRECONDITION if they differ.
absl::Status CheckIdentity(Database& db, FileSystem& files);

}  // namespace scalelab::db
