// Notes on a curve: what a reader must know before trusting a number.
#pragma once

#include <vector>

#include "analysis/outliers.h"
#include "analysis/points.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::analysis {

// Adds the notes on one point: refused values, repeated and noisy runs, outliers, different nodes, a reported
// throughput that differs from that of the steps, an efficiency above 1, and blocks that the base case lacks.
// `common` is the number of blocks that the point shares with the base case, or -1 without a base case.
// `own_baseline`: the base case is a point of the same series. Relative to another series, an efficiency above 1 is
// usual.
void AddPointNotes(const Point& point, int common, bool own_baseline, const std::vector<Outlier>& outliers,
                   scalelab::v1::CurvePoint& out);

// Adds the notes on a series: order, concurrent runs and single repeats. Sets its noise floor.
void AddSeriesNotes(const std::vector<const Point*>& points, bool listed, bool single, CellRatios& ratios,
                    scalelab::v1::CurveSeries& series);

}  // namespace scalelab::analysis
