// The parts of the mean steps of a curve as stacked bars.
#pragma once

#include <string>

#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Returns the height of FactorBars in pixels: 0 if no point has factors.
double FactorBarsHeight(const scalelab::v1::GetCurveResponse& curve);

// Returns a panel of an SVG picture that begins at `top`, with one bar for each point with factors, in groups
// of series. The height of a bar is the mean step, 100%. Its lowest part is the time that the computation
// takes in the base case; the parts above it are the losses. `repeats`: as for CurvePanel.
std::string FactorBars(double top, const scalelab::v1::GetCurveResponse& curve, bool repeats = true);

}  // namespace scalelab::client
