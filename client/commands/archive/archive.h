// The subcommands that archive a study in a file and restore it; see client/commands/commands.h.
#pragma once

#include "CLI/App.hpp"
#include "client/session/session.h"

namespace scalelab::client {

void AddStudyArchive(CLI::App& study, Action& chosen);
void AddStudyRestore(CLI::App& study, Action& chosen);

}  // namespace scalelab::client
