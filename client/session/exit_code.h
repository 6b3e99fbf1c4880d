// Exit codes of the program. Scripts depend on these numbers, so their meaning never changes.
#pragma once

#include "absl/status/status.h"

namespace scalelab::client {

enum class ExitCode : int {
  kOk = 0,
  kFailure = 1,
  kUsage = 2,          // invalid command line or study file
  kNotAllowed = 4,     // the server rejects the caller's credentials or permissions
  kRunsFailed = 5,     // the study or run that was followed is paused or did not succeed
  kUnreachable = 6,    // no server answers
  kTimeout = 8,        // --timeout expired
  kInterrupted = 130,  // SIGINT
  kTerminated = 143    // SIGTERM
};

ExitCode ExitCodeOf(const absl::Status& status);

// Converts an error about the user's input to INVALID_ARGUMENT with the same message and details, so that the program
// exits with kUsage. An error that does not concern the input (server unavailable, permission denied,
// timeout) is returned unchanged.
absl::Status AsInvalidInput(const absl::Status& status);

}  // namespace scalelab::client
