// Conditions on the points of a curve, and the order of its rows. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scalelab/v1/analysis.pb.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Keeps the points that fulfil the conditions, in the syntax of RunSelection, and the series that have such points. The
// fields are the axes of the series, and ranks. INVALID_ARGUMENT if a condition cannot be understood.
absl::Status SelectPoints(const std::vector<std::string>& where, scalelab::v1::GetCurveResponse& curve);

// Keeps the compared cells and the measured points that fulfil the conditions on their axes and ranks, as SelectPoints does.
absl::Status SelectGroups(const std::vector<std::string>& where,
                          scalelab::v1::CompareCellsResponse& comparison);

// Returns the order of the rows of a table that has a row for each point: the indices of at most `limit` rows (0: no limit),
// sorted by an axis, ranks or a quantity of `curve --panels`. With a leading '-' the largest is first; empty: the order of
// the curve. INVALID_ARGUMENT if the field is not known.
absl::StatusOr<std::vector<int>> RowOrder(const std::string& sort, int limit,
                                          const scalelab::v1::GetCurveResponse& curve);

}  // namespace scalelab::client
