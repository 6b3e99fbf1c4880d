// The subcommands about bundles; see client/commands/commands.h.
#pragma once

#include "CLI/App.hpp"
#include "client/session/session.h"

namespace scalelab::client {

void AddStudyBundle(CLI::App& study, Action& chosen);
void AddStudyImport(CLI::App& study, Action& chosen);
void AddVerify(CLI::App& app, Action& chosen);

}  // namespace scalelab::client
