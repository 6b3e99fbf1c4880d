// The client program as a function, so that tests can run it without starting a process.
#pragma once

#include <string>
#include <vector>

#include "client/session/session.h"

namespace scalelab::client {

// Runs the command line `arguments`, which excludes the program's name. Prints errors on io.err.
// Returns an ExitCode.
int RunProgram(const std::vector<std::string>& arguments, Io io);

}  // namespace scalelab::client
