#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// Measures errors of predictions and coverage of their intervals in emulated studies whose larger world sizes are known.
std::vector<Figure> RunPredictBench(const BenchOptions& options);
// The part whose steps are simulated by formulas, and the part whose ranks move bytes.
std::vector<Figure> RunSimulatedBench(const BenchOptions& options);
std::vector<Figure> RunMovingBench(const BenchOptions& options);

}  // namespace scalelab::bench
