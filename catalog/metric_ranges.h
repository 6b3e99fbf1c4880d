// The values that the metrics of a finished run can have. A value outside its range is a mistake of the program that
// reported it, and an average with it would mean nothing.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace scalelab {

struct MetricRange {
  absl::string_view name;
  double min, max;
  bool above_min = false;  // min itself is impossible

  // Returns whether the metric can have this value; false for NaN.
  bool Contains(double value) const { return value <= max && (above_min ? value > min : value >= min); }
};

// Returns the range of a metric that the table has.
const MetricRange& RangeOf(absl::string_view metric);

// Returns why the metric cannot have this value, for example "is -5, which is not above 0"; an empty text if it can.
// Metrics without a row in the table can have every finite value.
std::string WhyImpossible(absl::string_view metric, double value);

}  // namespace scalelab
