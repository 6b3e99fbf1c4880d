// The table of a figure of a curve. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/output/printer.h"
#include "client/plots/curve_view.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Returns the quantities of these names. INVALID_ARGUMENT if one is not known.
absl::StatusOr<std::vector<Quantity>> QuantitiesOf(const std::vector<std::string>& names);

// Returns whether the quantities include one that the service computes only if the request asks for factors.
bool NeedFactors(const std::vector<Quantity>& quantities);

// Prepares a curve with factors for an output that shows the goodput without the factors: removes the factors, and
// adds notes why goodputs are absent.
void KeepGoodput(scalelab::v1::GetCurveResponse& curve);

// Returns a row for each point: series, ranks, repeats ("4/5": 4 of 5 that the study asks for have results), and each quantity with
// its 95% interval. Without `repeats`, wide tables only have the repeats. The section refers to `curve`, which must outlive the
// printing.
Section FigureTable(const scalelab::v1::GetCurveResponse& curve, const std::vector<Quantity>& quantities,
                    bool repeats = true);

// Returns the table for CSV with the statistics of these quantities only: `table` is a CurveTable, whose columns for CSV
// have the names "throughput_mean", "throughput_low" and so on.
Section WithStatisticsOf(const std::vector<Quantity>& quantities, Section table);

}  // namespace scalelab::client
