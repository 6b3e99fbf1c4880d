// Tables of a scaling curve. Pure functions.
#pragma once

#include "client/output/printer.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Returns a table with a row for each point of each series. CSV has separate columns for each statistic
// ("throughput_mean", "throughput_low", ...). The section refers to `curve`, which must outlive the printing.
Section CurveTable(const scalelab::v1::GetCurveResponse& curve);
// Returns the facts below the table, one per line: study, scaling mode, base cases, fits and notes.
Section CurveFacts(const scalelab::v1::GetCurveResponse& curve);

}  // namespace scalelab::client
