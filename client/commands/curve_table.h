// A scaling curve as tables. Pure.
#pragma once

#include "client/output/printer.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// The points of all series; of CSV every statistic in columns of its own ("throughput_mean",
// "throughput_low", ...). Refers to `curve`, which must outlive the printing.
Section CurveTable(const scalelab::v1::GetCurveResponse& curve);
// Scope: scaling mode, base cases, fits and notes, a line each.
Section CurveFacts(const scalelab::v1::GetCurveResponse& curve);

}  // namespace scalelab::client
