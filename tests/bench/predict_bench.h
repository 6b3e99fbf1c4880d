#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// Measures errors of predictions and coverage of their intervals in emulated studies whose larger world sizes are known.
std::vector<Figure> RunPredictBench(const BenchOptions& options);
// The three parts: studies whose steps are simulated with formulas, studies whose ranks move bytes, and the
// same with recorded steps of the native trainer.
std::vector<Figure> RunSimulatedBench(const BenchOptions& options);
std::vector<Figure> RunMovingBench(const BenchOptions& options);
std::vector<Figure> RunRecordedBench(const BenchOptions& options);

// Trains models with the native trainer, and writes the times of their steps to the file options.record
// (emulation/recorded_steps.h). The figures are the median steps.
std::vector<Figure> RecordSteps(const BenchOptions& options);

}  // namespace scalelab::bench
