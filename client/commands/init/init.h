// The subcommand `study init`; see client/commands/commands.h.
#pragma once

#include "CLI/App.hpp"
#include "client/session/session.h"

namespace scalelab::client {

void AddStudyInit(CLI::App& study, Action& chosen);

}  // namespace scalelab::client
