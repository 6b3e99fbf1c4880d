// Checks that a database is on a local filesystem.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace scalelab::db {

// Returns the name of the network filesystem that statfs(2) reports as `type`, or null for a filesystem that
// is local or unknown. A WAL shares its index through mapped memory and relies on POSIX locks, and neither
// works between machines. FUSE counts as a network filesystem, because sshfs and most clients of parallel
// filesystems use it. 9P does not, because virtual machines and sandboxes use it for local disks.
const char* NetworkFilesystem(long type);

// Returns FAILED_PRECONDITION if the folder of `path` is on a network filesystem or cannot be examined.
absl::Status CheckLocalFilesystem(const std::string& path);

}  // namespace scalelab::db
