// Options of commands that write figures.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "client/figures/curve_figure.h"
#include "client/figures/figure.h"

namespace scalelab::client {

// Adds --file and --format.
void AddFigureOptions(CLI::App& command, FigureTarget& target);
// Adds --panels.
void AddPanels(CLI::App& command, std::vector<std::string>& panels);

}  // namespace scalelab::client
