// Finds the slowest rank and the slowest node of the repeats of a cell.
//
// The logarithm of the computation is modelled as repeat + unit + noise, where a unit is a rank or a node, by
// least squares, see unit_effects.h. Nodes need not take part in every repeat. node_comparison.h compares the
// nodes of runs that used one node each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/factors/step_parts.h"
#include "analysis/factors/unit_effects.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::analysis {

// One value of a unit in a repeat.
struct UnitValue {
  int unit = 0, repeat = 0;
  double log_seconds = 0;
};

// Returns the unit with the largest effect; nothing with fewer than two units, without degrees of freedom for
// the noise, or if no chain of common repeats connects all units.
std::optional<SlowestUnit> FindSlowest(std::vector<UnitValue> values, int units, double confidence);

// Returns the slowest rank; nothing if FindSlowest returns nothing.
std::optional<scalelab::v1::SlowestPart> SlowestRank(const StepCell& cell, double confidence);
// Returns the slowest node by the mean of its ranks; nothing if FindSlowest returns nothing. Leaves out
// repeats whose ranks cannot be assigned to nodes.
std::optional<scalelab::v1::SlowestPart> SlowestNode(const StepCell& cell, double confidence);

}  // namespace scalelab::analysis
