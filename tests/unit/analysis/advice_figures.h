// The figures of advice on world sizes, for comparison with SciPy.
#pragma once

#include <nlohmann/json.hpp>

namespace scalelab::analysis {

// Returns advice with the values that it is computed from.
nlohmann::json AdviceFigures();

}  // namespace scalelab::analysis
