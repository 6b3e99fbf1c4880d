// The subcommands of `scalelab study` that export data; see client/commands/commands.h.
#pragma once

#include "CLI/App.hpp"
#include "client/session/session.h"

namespace scalelab::client {

void AddStudyExport(CLI::App& study, Action& chosen);
void AddStudyGet(CLI::App& study, Action& chosen);

}  // namespace scalelab::client
