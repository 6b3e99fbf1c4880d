// Tables of comparisons and of advice on world sizes. Pure functions. The sections refer to their arguments, which must exist
// until the sections are printed.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/output/printer.h"
#include "scalelab/v1/analysis.pb.h"

namespace scalelab::client {

// Returns the share that an option gives as "2%" or "0.02": above 0, at most 1. The message of the error names the option.
absl::StatusOr<double> ShareOf(absl::string_view option, absl::string_view text);

// Returns a row for each pair.
Section ComparisonTable(const scalelab::v1::CompareCellsResponse& comparison);
// Returns the facts below it: noise floors and notes.
Section ComparisonFacts(const scalelab::v1::CompareCellsResponse& comparison);

// Returns a row for each world size of each series.
Section AdviceTable(const scalelab::v1::AdviseRanksResponse& response);
// Returns the advice on each series in words.
Section AdviceText(const scalelab::v1::AdviseRanksResponse& response);

}  // namespace scalelab::client
