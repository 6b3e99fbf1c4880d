// The parts of the mean steps of a curve as stacked bars.
#pragma once

#include <string>

#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Returns the height of FactorBars in pixels: 0 if no point has factors.
double FactorBarsHeight(const scalelab::v1::GetCurveResponse& curve);

// Returns a panel of an SVG picture that begins at `top`, with one bar for each point with factors, in groups of series.
// Each bar is the mean step as 100%: computation as fast as in the base case at the bottom, and above it what is lost.
std::string FactorBars(double top, const scalelab::v1::GetCurveResponse& curve);

}  // namespace scalelab::client
