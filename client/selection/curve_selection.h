// Conditions on the points of a curve. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Keeps the points that fulfil the conditions, in the syntax of RunSelection, and the series that have such points. The
// fields are the axes of the series, and ranks. INVALID_ARGUMENT if a condition cannot be understood.
absl::Status SelectPoints(const std::vector<std::string>& where, scalelab::v1::GetCurveResponse& curve);

}  // namespace scalelab::client
