// What telling of each step costs.
#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// events/path, events/native_path: microseconds that one step spends on being measured and told of, in the
// adapters and in the native trainer, against the shortest step below.
//
// events/MODEL_bBATCH_rRANKS: milliseconds of a step of the adapter worker/adapters/pytorch_ddp.py on two
// ranks that begins with telling of the step before, against one that does not. Both are drawn by chance
// within each training (toggled_events.py), and compared by their medians there; the median training counts,
// and `low` and `high` are the least and the greatest ratio. Needs Debian's python3-torch, and the programs
// scalelab-trainer and scalelab-bench-steps. Scale below 1 takes fewer trainings.
std::vector<Figure> RunEventsBench(const BenchOptions& options);

}  // namespace scalelab::bench
