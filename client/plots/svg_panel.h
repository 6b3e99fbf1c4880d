// A panel of a curve as SVG: one quantity over the ranks. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/plots/curve_view.h"
#include "client/plots/svg_elements.h"

namespace scalelab::client {

// Returns the mark of a series. Series differ also in shape, for prints without colour.
std::string SeriesMark(size_t index, double x, double y, absl::string_view tooltip);

// Returns axes, ideal lines, points with their intervals, and crosses for cells without a result. `box` is the frame of the
// panel; the axes are outside of it. An interval that leaves the scale ends in an arrow at the frame.
// `repeats`: the tooltip of a point contains the number of its values and of the requested repeats: "n=4/5".
std::string CurvePanel(const Box& box, const std::vector<PlotSeries>& series, Quantity quantity,
                       bool repeats = true);

}  // namespace scalelab::client
