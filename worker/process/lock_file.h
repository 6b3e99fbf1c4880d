// The worker's lock file: whoever can lock it knows that no process of the worker is left.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace scalelab::worker {

// Opens (or makes) the file, takes its flock without waiting, writes this process's id and a newline, and
// returns the descriptor, closed on exec. A forked child holds the lock too, until both have closed it.
// FAILED_PRECONDITION: another process holds it.
absl::StatusOr<int> LockFile(const std::string& path);

}  // namespace scalelab::worker
