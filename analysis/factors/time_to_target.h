// The time to a target accuracy by the rules of MLPerf Training (Mattson et al., MLSys 2020, section 3.2): the mean of the
// repeats without the fastest and the slowest one. A repeat that did not reach the target counts as the slowest.
#pragma once

#include <optional>
#include <vector>

#include "scalelab/v1/result.pb.h"

namespace scalelab::analysis {

struct TargetRepeat {
  std::optional<double> seconds;  // absent: it did not reach the target
  std::optional<double> samples;  // until the target was reached
};

// Returns the result of repeats that had a target, without samples_ratio.
scalelab::v1::TimeToTarget MakeTimeToTarget(const std::vector<TargetRepeat>& repeats);

// Returns the values without the smallest and the largest, in ascending order. A value that is absent is larger than all
// others. Returns nothing if there are fewer than 3 values, or if more than one is absent.
std::vector<double> WithoutExtremes(const std::vector<std::optional<double>>& values);

// Compares the convergence with that of the base case, whose samples must be known for a result. A note marks a point
// that needs fewer samples although its global batch is not smaller. A smaller batch may need fewer samples.
void CompareConvergence(const scalelab::v1::TimeToTarget& base, int base_batch, int batch,
                        scalelab::v1::TimeToTarget& point);

}  // namespace scalelab::analysis
