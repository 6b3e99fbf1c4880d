// Where a database may live.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace scalelab::db {

// Name of the network filesystem that statfs(2) reports as `type`, or null when it is none that is known. WAL
// shares an index through mapped memory and trusts POSIX locks; neither holds between machines. FUSE counts,
// because sshfs and most parallel filesystems' clients show as FUSE. 9P does not: virtual machines and
// sandboxes show local disks that way.
const char* NetworkFilesystem(long type);

// FAILED_PRECONDITION when the folder of `path` is on a network filesystem or cannot be examined.
absl::Status CheckLocalFilesystem(const std::string& path);

}  // namespace scalelab::db
