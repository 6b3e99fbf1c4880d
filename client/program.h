// The whole program without a process around it, so that tests run it as users do.
#pragma once

#include <string>
#include <vector>

#include "client/session/session.h"

namespace scalelab::client {

// `arguments` without the program's name. Errors are said on io.err; the exit code is one of ExitCode.
int RunProgram(const std::vector<std::string>& arguments, Io io);

}  // namespace scalelab::client
