// Tables of comparisons and of advice on world sizes. Pure functions. The sections refer to their arguments, which must exist
// until the sections are printed.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/output/printer.h"
#include "scalelab/v1/analysis.pb.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Parses a share such as "2%" or "0.02", which must be above 0 and at most 1. The error message contains the
// name of the option.
absl::StatusOr<double> ShareOf(absl::string_view option, absl::string_view text);

// Returns green for a faster or an equivalent first value, red for a slower one.
Tone VerdictTone(scalelab::v1::ComparedPair::Verdict verdict);

// Returns a curve for each study, which has only the series, the world sizes and the notes, for CurveNotes.
std::vector<scalelab::v1::GetCurveResponse> NotedCurves(
    const google::protobuf::RepeatedPtrField<scalelab::v1::MeasuredSeries>& measured);

// Returns a row for each pair.
Section ComparisonTable(const scalelab::v1::CompareCellsResponse& comparison);
// Returns the facts below the comparison table: noise floors and notes. `curve_notes` are the notes on the
// compared points.
Section ComparisonFacts(const scalelab::v1::CompareCellsResponse& comparison,
                        const std::vector<std::string>& curve_notes);

// Returns a row for each world size of each series.
Section AdviceTable(const scalelab::v1::AdviseRanksResponse& response);
// Returns the advice on each series as text, and the notes on the points that it is computed from.
Section AdviceText(const scalelab::v1::AdviseRanksResponse& response,
                   const std::vector<std::string>& curve_notes);

}  // namespace scalelab::client
