// A copy of the database while it is used.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace scalelab::db {

// Copies the database `path`, as it is at one moment of the call, to the new file `file` (mode 0600, a single
// file that needs no other beside it). It may be in use or not: the copy is read through a connection that
// can neither write nor checkpoint. A service goes on committing meanwhile, and its write-ahead log grows by
// what it commits; with the rollback journal its commits wait until the copy is made. Until the copy is
// complete, checked and on the disk it is called `file`.part; after an error neither is there. May be called
// from any thread. The errors are sentences:
//   NOT_FOUND            there is no `path`
//   ALREADY_EXISTS       `file` or `file`.part is there; neither is touched
//   FAILED_PRECONDITION  `path` is not ours, or one of the two cannot be opened
//   RESOURCE_EXHAUSTED   no space left for `file`
//   UNAVAILABLE          `path` is locked by another process
//   DATA_LOSS            `path` is damaged
absl::Status BackupDatabase(const std::string& path, const std::string& file);

}  // namespace scalelab::db
