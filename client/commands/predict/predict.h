// The subcommands about predictions; see client/commands/commands.h.
#pragma once

#include "CLI/App.hpp"
#include "client/session/session.h"

namespace scalelab::client {

void AddPredict(CLI::App& app, Action& chosen);
void AddPredictions(CLI::App& app, Action& chosen);

}  // namespace scalelab::client
