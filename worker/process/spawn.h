// Starting one process, as cheaply as posix_spawn and with what it lacks.
#pragma once

#include <sys/types.h>

#include <string>

#include "worker/process/process.h"

namespace scalelab::worker {

// Starts the command in a session of its own, killed when the calling process dies, with default signal
// handling and its output in its files. Returns its pid, or -1 with a sentence. Call it from a
// single-threaded process.
pid_t Spawn(const Command& command, std::string* error);

}  // namespace scalelab::worker
