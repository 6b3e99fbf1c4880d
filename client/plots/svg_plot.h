// A scaling curve as an SVG picture.
#pragma once

#include <string>

#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Returns a self-contained SVG 1.1 document with two panels over ranks (log2): speedup (throughput if no
// series has a baseline) and, to the right, efficiency. Both show 95% intervals, ideal lines and marks for
// cells without a result. A legend gives each base case in absolute units. If the curve has factors, stacked bars below
// show the parts of the mean steps. The same curve always gives the same bytes. All text of the curve is escaped.
std::string SvgPlot(const scalelab::v1::GetCurveResponse& curve);

}  // namespace scalelab::client
