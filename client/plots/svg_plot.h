// A scaling curve as an SVG picture.
#pragma once

#include <string>
#include <vector>

#include "client/plots/curve_view.h"
#include "client/plots/svg_elements.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Returns a self-contained SVG 1.1 document with a panel over ranks (log2) for each quantity, two in a row. All show 95%
// intervals, ideal lines where there are any, and marks for cells without a result. A legend gives each base case in absolute
// units. If the curve has factors, stacked bars below show the parts of the mean steps. The same curve always gives the same
// bytes. All text of the curve is escaped. `panels` must not be empty.
std::string SvgPlot(const scalelab::v1::GetCurveResponse& curve, const std::vector<Quantity>& panels,
                    const PictureStyle& style = {});
// Calls SvgPlot with the panels of UsualPanels.
std::string SvgPlot(const scalelab::v1::GetCurveResponse& curve);

}  // namespace scalelab::client
