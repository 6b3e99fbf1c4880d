// Options of commands that write figures.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Validators.hpp"
#include "client/figures/curve_figure.h"
#include "client/figures/figure.h"

namespace scalelab::client {

// Adds --file and --format.
void AddFigureOptions(CLI::App& command, FigureTarget& target);
// Returns a validator that refuses file names without the suffix .svg, such as "curve.pdf" and "-". Users
// must use --file and --format for them.
CLI::Validator IsSvgFile();
// Adds --panels.
void AddPanels(CLI::App& command, std::vector<std::string>& panels);

}  // namespace scalelab::client
