// Options of commands that write figures.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Validators.hpp"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/figures/curve_figure.h"
#include "client/figures/figure.h"

namespace scalelab::client {

// Adds --file, --format, --title and --width.
void AddFigureOptions(CLI::App& command, FigureTarget& target);
// Returns a validator that refuses file names without the suffix .svg, such as "curve.pdf" and "-". Users
// must use --file and --format for them.
CLI::Validator IsSvgFile();
// Adds --panels and --no-n. Call CheckPanels before the figure is written.
void AddPanels(CLI::App& command, std::vector<std::string>& panels, PictureStyle& style);
// Returns INVALID_ARGUMENT if --panels is given and has no effect: if the command writes neither the figure nor the SVG file,
// or if it writes a table whose columns do not depend on the panels. `fixed_table` says what such a table shows; it is empty
// if tables show the panels.
absl::Status CheckPanels(const std::vector<Quantity>& panels, const FigureTarget& target,
                         const std::string& svg, absl::string_view fixed_table);
// Returns INVALID_ARGUMENT if there are options for the look of a figure, but the command writes neither the figure nor
// the SVG file, whose name may be empty. Also returns INVALID_ARGUMENT if both are wanted, because a command writes only one.
absl::Status CheckStyle(const FigureTarget& target, const std::string& svg);

}  // namespace scalelab::client
