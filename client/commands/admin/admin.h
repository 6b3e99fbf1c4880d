// The subcommands about the service; see client/commands/commands.h.
#pragma once

#include "CLI/App.hpp"
#include "client/session/session.h"

namespace scalelab::client {

void AddAdminUsage(CLI::App& admin, Action& chosen);
// Adds `drain` and `undrain`.
void AddAdminDrain(CLI::App& admin, Action& chosen);
void AddQueue(CLI::App& app, Action& chosen);

}  // namespace scalelab::client
