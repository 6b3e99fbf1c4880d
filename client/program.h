// The client program as a function, so that tests can run it without starting a process.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/session/session.h"

namespace CLI {
class App;
}  // namespace CLI

namespace scalelab::client {

// Runs the command line `arguments`, which excludes the program's name. Prints errors on io.err.
// Returns an ExitCode.
int RunProgram(const std::vector<std::string>& arguments, Io io);

// Calls `visit` with the definition of the command line. The generator of the manual pages uses it.
void VisitCommandLine(const std::function<void(const CLI::App&)>& visit);

}  // namespace scalelab::client
