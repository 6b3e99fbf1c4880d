// What telling of each step costs.
#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// events/path, events/native_path: microseconds that one step spends on being measured and told of, in the
// adapters and in the native trainer, against the shortest step below.
//
// events/MODEL_bBATCH_rRANKS: milliseconds of a step of the adapter worker/adapters/pytorch_ddp.py on two
// ranks, the median over their runs' medians, against the same without step events (SCALELAB_STEP_EVENTS=0).
// Both take turns, first one and then the other first; the median ratio of a round counts, and `low` and
// `high` are the least and the greatest. Needs Debian's python3-torch, and the programs scalelab-trainer
// and scalelab-bench-steps. Scale below 1 takes fewer rounds.
std::vector<Figure> RunEventsBench(const BenchOptions& options);

}  // namespace scalelab::bench
