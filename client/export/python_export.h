// Exports of the formats that the Python client writes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session/exit_code.h"

namespace scalelab::client {

// Runs `python3 -m scalelab` with these arguments, and with the standard streams and the environment of this
// process. Blocks until it ends, and returns its exit code; it prints its own errors. FAILED_PRECONDITION if
// python3 is missing or cannot import scalelab.
absl::StatusOr<ExitCode> RunPythonClient(const std::vector<std::string>& arguments);

}  // namespace scalelab::client
