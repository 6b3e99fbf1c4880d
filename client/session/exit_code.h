// What the program tells its caller by exiting; scripts depend on these numbers, so they never change their
// meaning.
#pragma once

#include "absl/status/status.h"

namespace scalelab::client {

enum class ExitCode : int {
  kOk = 0,
  kFailure = 1,
  kUsage = 2,         // wrong command line, or a study file that is not valid
  kNotAllowed = 4,    // the server does not know the caller, or does not let it
  kRunsFailed = 5,    // "wait" or "watch" ended with failed or cancelled runs
  kUnreachable = 6,   // no server answers
  kTimeout = 8,       // --timeout is over
  kInterrupted = 130  // SIGINT or SIGTERM
};

ExitCode ExitCodeOf(const absl::Status& status);

// The same error as one about what the user handed in, which exits with kUsage whatever its code was. Keeps
// the message. An error that says nothing of the input (server gone, not allowed, time over) is returned as
// it is.
absl::Status AsInvalidInput(const absl::Status& status);

}  // namespace scalelab::client
