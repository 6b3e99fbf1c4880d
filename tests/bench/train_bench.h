// Training speed of the native engines against PyTorch DDP in Python.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// train/MODEL_bBATCH_rRANKS_ENGINE: samples a second of the trainer, the batch being that of each rank, one
// thread a rank, against the better of PyTorch DDP's two memory formats over Gloo
// (tests/bench/pytorch_ddp.py, with /usr/bin/python3, whose python3-torch has the same LibTorch below).
// Contenders take turns; the median of five rounds counts, and `low` and `high` are the least and the
// greatest ratio of a round. Scale below 1 takes fewer rounds and steps; options.models, .ranks and .rounds
// cut it into pieces.
std::vector<Figure> RunTrainBench(const BenchOptions& options);

// What options.models may name.
std::vector<std::string> TrainBenchModels();

}  // namespace scalelab::bench
