// Cells that several tables have: the axes of a key, and estimates. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "client/output/printer.h"
#include "google/protobuf/struct.pb.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Returns the text of the value that `key` has for `axis`; `missing` if it has none.
std::string AxisText(const google::protobuf::Struct& key, const std::string& axis,
                     absl::string_view missing = "");

// Returns the mean, and the interval if there is one: "1.87 [1.14, 3.07]". `text` formats each number.
std::string WithInterval(const scalelab::v1::Estimate& estimate, absl::FunctionRef<std::string(double)> text);
// Returns a relative difference in percent with its sign, and the interval if there is one:
// "+8.1 [+5.0, +11.3]".
std::string DifferenceText(const scalelab::v1::Estimate& difference);

// Returns the number of values that are used and the number of repeats that the study asks for: "4/5", or
// "4" if `asked` is 0, which means that it is not known.
std::string UsedRepeats(int n, int asked);

// Appends the columns NAME_mean, NAME_low and NAME_high of CSV.
void AddEstimateColumns(absl::string_view name, Section& section);
// Appends a cell for each of these columns. The cell of a number that is not known is empty. If `estimate` is
// null, all cells are empty.
void AddEstimateCells(const scalelab::v1::Estimate* estimate, std::vector<Cell>& row);

}  // namespace scalelab::client
