// The figures of predictions, for comparison with SciPy.
#pragma once

#include <nlohmann/json.hpp>

namespace scalelab::analysis {

// Returns predictions with the values that they are computed from.
nlohmann::json PredictionFigures();

}  // namespace scalelab::analysis
