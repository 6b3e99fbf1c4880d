// Starts one process, as cheaply as posix_spawn but with options that it lacks (session, parent-death signal,
// working directory, cores).
#pragma once

#include <sys/types.h>

#include <string>

#include "worker/process/process.h"

namespace scalelab::worker {

// Starts the command in a new session, with default signal handling, and appends its output to its files. The
// kernel kills the started process when the calling process dies. Returns the pid, or -1 with an error
// message in `*error` and, in `*of_output`, whether a file of its output could not be opened. The caller must be
// single-threaded.
pid_t Spawn(const Command& command, std::string* error, bool* of_output);

}  // namespace scalelab::worker
