// The ranges of the metrics of a finished run. A value outside of its range is an error of the program that
// reported it. An average that includes such a value would be meaningless.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace scalelab {

struct MetricRange {
  absl::string_view name;
  double min, max;
  bool above_min = false;  // whether a value must be greater than min

  // Returns whether the metric can have this value; false for NaN.
  bool Contains(double value) const { return value <= max && (above_min ? value > min : value >= min); }
};

// Returns the range of a metric, which must be in the table.
const MetricRange& RangeOf(absl::string_view metric);

// Returns why the metric cannot have this value, for example "is -5, which is not above 0". Returns "" if it
// can. Metrics that are not in the table can have every finite value.
std::string WhyImpossible(absl::string_view metric, double value);

}  // namespace scalelab
