// Tables as LaTeX. Pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "client/output/printer.h"

namespace scalelab::client {

// Returns text that LaTeX shows as it is written here, also with +-, dashes and ellipses.
std::string Latex(absl::string_view text);

// Returns a tabular environment with the columns that tables show. It needs the package booktabs. The lines
// of `comment` are written above it.
std::string LatexTable(const Section& section, absl::string_view comment);

}  // namespace scalelab::client
