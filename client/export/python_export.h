// Exports of the formats that the Python client writes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session/exit_code.h"

namespace scalelab::client {

// Runs `python3 -m scalelab` with these arguments, and with the standard streams and the environment of this
// process. Blocks until it ends, and passes SIGINT and SIGTERM on to it. Returns its exit code, or
// kInterrupted or kTerminated if such a signal has ended it; it prints its own errors. FAILED_PRECONDITION if
// python3 is missing or cannot import scalelab. UNKNOWN if another signal has ended it.
absl::StatusOr<ExitCode> RunPythonClient(const std::vector<std::string>& arguments);

}  // namespace scalelab::client
