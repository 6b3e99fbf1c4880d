// From rows of runs to scaling curves with intervals. Pure: no clock, no I/O, deterministic for equal input.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "db/records.h"
#include "scalelab/v1/result.pb.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::server {

struct CurveOptions {
  int resamples = 2000;          // bootstrap resamples
  double confidence = 0.95;
};

// `spec` is the expanded specification, `cells` and `rows` are those of one study. Series are the distinct values of
// all axes but ranks, in file order; runs whose hardware or software fingerprint differs from the series' majority
// make a series of their own with a note.
//
// Speedup and efficiency are ratios of means; their intervals resample whole blocks (repeats), the baseline's repeats
// with them, so that the baseline's variance is carried and what a block has in common cancels (Efron and Tibshirani
// 1993, chapters 8 and 13; Kalibera and Jones, ISMM 2013). Where few blocks make a percentile bootstrap too narrow it is
// Student's t on the logarithm instead, see bootstrap.h; the interval of a mean is always Student's t. With fewer than
// two repeats an interval is absent. `differences`, by id of the cell, are what training.h found.
scalelab::v1::GetCurveResponse MakeCurve(
    const scalelab::v1::StudySpec& spec, const std::vector<db::CellRow>& cells,
    const std::vector<db::CurveRow>& rows, const CurveOptions& options = {},
    const std::map<int64_t, scalelab::v1::TrainingDifference>& differences = {});

}  // namespace scalelab::server
