// The subcommands that write documents and pictures; see client/commands/commands.h.
#pragma once

#include "CLI/App.hpp"
#include "client/session/session.h"

namespace scalelab::client {

void AddCurve(CLI::App& app, Action& chosen);
void AddPlot(CLI::App& app, Action& chosen);
void AddStudyCompare(CLI::App& study, Action& chosen);
void AddStudyReport(CLI::App& study, Action& chosen);

}  // namespace scalelab::client
