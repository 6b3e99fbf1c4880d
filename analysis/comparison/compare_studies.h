// Compares whole studies with each other at equal values of all axes. The functions are pure.
//
// The repeats of two studies are independent samples, with noise of their own. The interval of the effect is therefore Welch's
// (Biometrika 34, 1947) for the logarithms, and with several studies that of Games and Howell (Journal of Educational
// Statistics 1, 1976): the quantile of the studentised range with Welch's degrees of freedom. It contains the noise within the
// studies, but no difference between days.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/comparison/cell_groups.h"
#include "scalelab/v1/analysis.pb.h"

namespace scalelab::analysis {

// Compares the studies by their names. An axis that has only one value in each study is ignored, even if its
// values differ between the studies. A note lists every parameter in which compared cells differ. Cells on
// different hardware or software are compared, with a note. `equivalent` is a relative difference; 0: no
// test of equivalence. Returns CANCELLED soon after `over` returns true.
absl::StatusOr<scalelab::v1::CompareCellsResponse> CompareWholeStudies(const std::vector<StudyRows>& studies,
                                                                       double equivalent,
                                                                       const std::function<bool()>& over);

}  // namespace scalelab::analysis
