// Measures the cost of step events.
#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// events/path, events/native_path: microseconds per step for measuring and writing its event, in the adapters
// and in the native trainer, compared with the shortest step below.
//
// events/MODEL_bBATCH_rRANKS: milliseconds of a step of the adapter worker/adapters/pytorch_ddp.py on two
// ranks that begins by writing the event of the previous step, compared with a step that does not. The steps
// with events are chosen at random within each training (toggled_events.py), and each training compares the
// medians of both kinds. The figure is the median training; `low` and `high` are the smallest and the largest
// ratio. Needs Debian's python3-torch, and the programs scalelab-trainer and scalelab-bench-steps. A scale
// below 1 runs fewer trainings.
std::vector<Figure> RunEventsBench(const BenchOptions& options);

}  // namespace scalelab::bench
