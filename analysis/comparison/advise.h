// Advises up to which number of ranks more ranks are worth their price. Pure functions.
//
// All figures are monotone functions of S, the ratio of the throughputs of two world sizes. The ends of the interval of a
// figure are therefore its values at the ends of the interval of S:
//   gain of a doubling   S^(1 / log2(q / p)) - 1 from p to q ranks; 1 is ideal
//   cost                 q hours(q) price
//   price of an hour     ((q - p) S / (S - 1) - q) price: the additional cost for each hour that q ranks save
//                        compared with p ranks; undefined where the interval of S contains 1
//
// A decision is open while the interval of a figure contains the limit on which the decision depends. An interval of n
// repeats is assumed to shrink as t(df) / sqrt(n), where df grows in proportion to n - 1, and the estimate to stay the same.
#pragma once

#include <vector>

#include "analysis/comparison/cell_groups.h"
#include "scalelab/v1/analysis.pb.h"

namespace scalelab::analysis {

// The largest number of additional repeats that advice names. A difference that needs more hardly matters.
inline constexpr int kMostAdditionalRepeats = 100;

struct AdviceOptions {
  double min_gain = 0.5;
  double rank_hour_price = 1;
  double deadline_hours = 0;  // 0: none
  double epochs = 1;
};

// Returns the advice for each series of a study. Leaves out a world size that shares no blocks with a smaller one, because
// their ratio is unknown.
//
// From the smallest world size on, each step to the next one pays if the gain of a doubling is at least
// `min_gain`: certainly if the whole interval is at least `min_gain`, certainly not if the whole interval
// is below it. The recommended size is the last one before a step that does not pay; if it misses the
// deadline, the smallest larger one that meets it. While steps are undecided, the sizes that could be
// right are candidates.
//
// For each decision that is open, the advice has the number of additional repeats that would probably settle it.
std::vector<scalelab::v1::Advice> AdviseRanks(const StudyRows& study, const AdviceOptions& options);

}  // namespace scalelab::analysis
