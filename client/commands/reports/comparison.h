// Comparisons of studies: `study compare A B` and `curve A B`.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/figures/figure.h"
#include "client/output/printer.h"
#include "client/plots/curve_view.h"
#include "client/session/session.h"
#include "scalelab/v1/analysis.pb.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

struct ComparisonOptions {
  std::vector<std::string> studies;  // selectors, at least two
  std::string equivalent;            // range of equivalence in the syntax of ShareOf; empty: no test
  std::vector<Quantity> panels;      // panels of the picture
  FigureTarget figure;               // figure to write instead of printing the table
  std::string svg;                   // SVG file to write in addition; empty: none
  bool plot = false, no_plot = false;
  std::vector<std::string> where;  // conditions on the compared cells
};

// What a table of a comparison shows, for CheckPanels.
inline constexpr absl::string_view kTableOfComparison = "a table of a comparison has only throughputs";

// Compares the values of an axis of the studies. `studies` are selectors, and `equivalent` is as
// in ComparisonOptions. Returns INVALID_ARGUMENT if a selector or `equivalent` is malformed, or
// the server's error.
absl::StatusOr<scalelab::v1::CompareCellsResponse> ReadComparison(const std::string& axis,
                                                                  const std::vector<std::string>& studies,
                                                                  const std::string& equivalent,
                                                                  Session& session);

// Returns the notes on the compared studies, as CurveNotes does. A pure function.
std::vector<std::string> MeasurementNotes(const scalelab::v1::CompareCellsResponse& comparison);

// Prints the differences between the studies with a plot of their curves, or writes the figure.
absl::StatusOr<ExitCode> CompareWholeStudies(const ComparisonOptions& options, Session& session);

// Returns one curve with the series of all curves. Axis "study" has the name of the study, and its number if
// names are equal. A pure function.
scalelab::v1::GetCurveResponse JoinCurves(const std::vector<scalelab::v1::GetCurveResponse>& curves);

// Returns a row for each pair of studies at each cell. The section refers to its argument.
Section StudyDifferences(const scalelab::v1::CompareCellsResponse& comparison);

}  // namespace scalelab::client
