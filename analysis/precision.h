// Decides when the intervals of a study with adaptive_repeats are narrow enough, and corrects the intervals
// for this stopping rule.
//
// A study that ends as soon as its intervals are narrow ends more often when the noise happens to look small,
// so that 95% intervals would contain the true value too rarely: in 88% of studies of two cells. The effect
// is largest if the study needs about ten blocks. Two changes bring the coverage back to 93 to 97% if all
// cells have the same noise (`scalelab-bench coverage`), and to 90.9% in the worst case:
// - Each ratio has Student's t interval of its own logarithms within blocks. Their mean is independent of
//   their deviation, so the rule biases only the deviation (Chow and Robbins, Annals of Mathematical
//   Statistics 36, 1965).
// - All intervals of the study are computed at a higher confidence than the 95% that they stand for. With two
//   cells it is lower at the first look than at the later ones, as in group-sequential tests with a spending
//   function (Lan and DeMets, Biometrika 70, 1983). The confidences were calibrated for this rule by simulation.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "db/records.h"
#include "scalelab/v1/result.pb.h"
#include "scalelab/v1/study.pb.h"
#include "study/cell_list.h"

namespace scalelab::analysis {

// Returns the confidence at which the intervals of a study with this rule are computed when `blocks` blocks have
// results. `cells` is the number of cells with intervals. The confidence is 96.5%, except with one or two cells
// after the first look: there it is 98% if `min` is 2, 97.5% if it is 3, and 97% otherwise. Each look is a chance to end with a deviation that is
// too small, and the deviation of few blocks varies most. With more cells, all of their intervals must be narrow,
// which rarely happens by chance.
double SequentialConfidence(const v1::AdaptiveRepeats& repeats, size_t cells, int blocks);

// Returns the SequentialConfidence of a study with adaptive_repeats, and nothing for other studies. Excluded cells and
// communication baselines have no intervals. `parameters[i]` belongs to `cells[i]`.
std::optional<double> SequentialConfidenceOf(const v1::StudySpec& spec, const std::vector<db::CellRow>& cells,
                                             const CellList& parameters,
                                             const std::vector<db::CurveRow>& rows);

// Returns the largest half width of the intervals of a curve, relative to the value: of the speedups or, if there is only one
// world size in each series, of the mean throughputs. Infinity if one of the points with results has no interval yet, nothing if
// no point has results.
std::optional<double> WidestHalfWidth(const v1::GetCurveResponse& curve);

}  // namespace scalelab::analysis
