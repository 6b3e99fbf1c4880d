// Measures how often 95% intervals contain the true value, in simulated studies.
#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// Returns the coverage of speedups in percent for each kind of noise, number of cells and number of repeats
// ("coverage/cv 1%/4 cells/n=3"; `low` is 100 times the median half width, `high` the share of studies with an interval),
// that of fits, and the share of true laws that are refuted. Deterministic. --scale 1 simulates 1,000 studies each.
std::vector<Figure> RunCoverageBench(const BenchOptions& options);

// Returns for five true laws how often the advice is the right world size, and how often the advice is "undecided" when it is not.
// Deterministic. --scale 1 simulates 1,000 studies each, --scale 0.04 makes 200 together.
std::vector<Figure> RunAdviseBench(const BenchOptions& options);

}  // namespace scalelab::bench
