#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// Measures errors of predictions and coverage of their intervals in emulated studies whose larger world sizes are known.
std::vector<Figure> RunPredictBench(const BenchOptions& options);

}  // namespace scalelab::bench
