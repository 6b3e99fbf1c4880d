// Starts one process, as cheaply as posix_spawn but with options that it lacks (session, parent-death signal,
// working directory, cores).
#pragma once

#include <sys/types.h>

#include <string>

#include "worker/process/process.h"

namespace scalelab::worker {

// Starts the command in a session of its own, with default signal handling and its output appended to its
// files. The kernel kills it when the calling process dies. Returns its pid, or -1 and one sentence in
// `*error`. The caller must be single-threaded.
pid_t Spawn(const Command& command, std::string* error);

}  // namespace scalelab::worker
