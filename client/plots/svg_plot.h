// A curve as a picture for papers and pages.
#pragma once

#include <string>

#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// A self-contained SVG 1.1 document: speedup (throughput where no series has a baseline) and, beside it,
// efficiency over ranks (log2), with 95% intervals, ideal lines, a legend with each base case in absolute
// units, and marks for cells without a result. The same curve always gives the same bytes. Any text of the
// curve is escaped.
std::string SvgPlot(const scalelab::v1::GetCurveResponse& curve);

}  // namespace scalelab::client
