// Finds the slowest rank and the slowest node of the repeats of a cell.
//
// The logarithm of the computation is modelled as repeat + unit + noise, where a unit is a rank or a node, by
// least squares (Scheffe, The Analysis of Variance, 1959, chapter 4; nodes need not take part in every
// repeat). The interval of the largest unit is corrected for the number of units (Bonferroni).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/factors/step_parts.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::analysis {

// One value of a unit in a repeat.
struct UnitValue {
  int unit = 0, repeat = 0;
  double log_seconds = 0;
};

struct SlowestUnit {
  int unit = 0;
  double effect = 0;  // effect of the unit on the logarithm, relative to the mean of the units
  double half = 0;    // half the width of the interval of `effect`
  int repeats = 0;    // number of repeats in which the unit took part
};

// Returns the unit with the largest effect; nothing with fewer than two units, without degrees of freedom for the noise, or
// if no chain of common repeats connects all units.
std::optional<SlowestUnit> FindSlowest(std::vector<UnitValue> values, int units, double confidence);

// Returns the slowest rank; nothing if FindSlowest returns nothing.
std::optional<scalelab::v1::SlowestPart> SlowestRank(const StepCell& cell, double confidence);
// Returns the slowest node by the mean of its ranks; nothing if FindSlowest returns nothing. Leaves out
// repeats whose ranks cannot be assigned to nodes.
std::optional<scalelab::v1::SlowestPart> SlowestNode(const StepCell& cell, double confidence);

}  // namespace scalelab::analysis
