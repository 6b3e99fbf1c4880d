#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// Measures errors of predictions and coverage of their intervals in emulated studies whose larger world sizes are known.
std::vector<Figure> RunPredictBench(const BenchOptions& options);
// The two parts: studies whose steps are simulated with formulas, and studies whose ranks move bytes.
std::vector<Figure> RunSimulatedBench(const BenchOptions& options);
std::vector<Figure> RunMovingBench(const BenchOptions& options);

}  // namespace scalelab::bench
