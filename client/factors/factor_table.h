// Tables of what explains a curve: factors of the efficiency, slowest ranks, critical batches. Pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "client/output/printer.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Returns a row for each point with results. Without `repeats`, only wide tables have the column with the
// number of repeats. The sections refer to `curve`, which must exist until they are printed.
Section FactorTable(const scalelab::v1::GetCurveResponse& curve, bool repeats = true);
// Returns what the columns mean, what could not be computed and why, and the notes on the curve.
std::vector<std::pair<std::string, Cell>> FactorFacts(const scalelab::v1::GetCurveResponse& curve);

// Returns for example "4/5": repeats that reached the target, of those that succeeded; "-" if there was no target.
std::string ReachedText(const scalelab::v1::CurvePoint& point);

}  // namespace scalelab::client
