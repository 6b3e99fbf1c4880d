// A curve drawn with characters.
#pragma once

#include <string>

#include "client/output/terminal.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Speedup (throughput where no series has a baseline) over ranks, both on log2 scales, with the ideal line,
// intervals and cells without a result; below it a legend. Braille lines when `terminal.unicode`, else ASCII
// only. At most `terminal.width` columns (100 at the widest). Empty when there is nothing to draw.
std::string TerminalPlot(const scalelab::v1::GetCurveResponse& curve, const Terminal& terminal);

}  // namespace scalelab::client
