// A scaling curve drawn with characters.
#pragma once

#include <string>

#include "client/output/terminal.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Returns a plot of speedup (throughput if no series has a baseline) over ranks, both on log2 scales, with
// the ideal line, intervals and cells without a result, and a legend below. Uses braille lines if
// `terminal.unicode`, else only ASCII. At most `terminal.width` columns wide, and never more than 100. Empty
// if there is nothing to draw.
std::string TerminalPlot(const scalelab::v1::GetCurveResponse& curve, const Terminal& terminal);

}  // namespace scalelab::client
