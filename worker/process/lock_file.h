// The worker's lock file: while it is locked, some process of the worker is alive.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace scalelab::worker {

// Opens or creates the file, takes an exclusive flock, writes this process's id and a newline, and
// returns the descriptor, which is closed on exec. A forked child shares the lock until both processes
// have closed the descriptor. Retries for half a second, because another process may hold the lock for an
// instant to test it.
//
// Returns FAILED_PRECONDITION if another process holds the lock, or the error of a system call that failed.
absl::StatusOr<int> LockFile(const std::string& path);

}  // namespace scalelab::worker
