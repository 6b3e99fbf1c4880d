// The figures of times to a target and of their comparison with a reference, for comparison with SciPy.
#pragma once

#include <nlohmann/json.hpp>

namespace scalelab::analysis {

// Returns times to a target with the repeats that they are computed from.
nlohmann::json TargetFigures();

}  // namespace scalelab::analysis
