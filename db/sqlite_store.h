// A Store in one SQLite file: WAL, synchronous=EXTRA, one writing connection, several read-only ones.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "db/store.h"

namespace scalelab {
class FileSystem;
}

namespace scalelab::db {

struct SqliteOptions {
  std::string path;
  // Use a rollback journal instead of WAL. It is the only safe mode on a network filesystem; without it, a
  // database there is rejected. While another process reads, for example a backup, commits wait for it, at most an hour,
  // and reads wait for the commit.
  bool rollback_journal = false;
  int readers = 4;  // number of read-only connections
  // Number of pages of 4 KiB in the WAL after which a commit runs a checkpoint. A checkpoint copies each changed page
  // once, however often it was written, but delays the commit that runs it. 16 MiB are some tens of milliseconds, once
  // in hundreds of small commits. The WAL is then overwritten from its start, so fsync need not record a growing file.
  int checkpoint_pages = 4096;
  // The rows of a study's curve are kept in memory for a minute if the study has at least this number of
  // runs. A row takes about 300 bytes.
  int fewest_rows_kept = 10'000;
  // The file system of PATH.id; null: the machine's.
  FileSystem* files = nullptr;
};

// Opens or creates the database and migrates it to the newest schema. Returns FAILED_PRECONDITION, with a
// message that suggests what to do, if the file is not a scalelab database (application_id), has a newer
// schema, is on a network filesystem or in a read-only folder, if permissions are missing, or if another
// process has the store open. Returns FAILED_PRECONDITION also if the file is missing, empty or another
// database than the one whose identity is in PATH.id. PATH.id is created together with the database.
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const SqliteOptions& options);

// Returns the number of the newest schema (user_version).
int NewestSchema();

}  // namespace scalelab::db
