// Compares the training speed of the native engines with PyTorch DDP in Python.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// train/MODEL_bBATCH_rRANKS_ENGINE: samples per second of the trainer with BATCH images per rank and one
// thread per rank, compared with the better of PyTorch DDP's two memory formats over Gloo
// (tests/bench/pytorch_ddp.py, run by /usr/bin/python3, whose python3-torch contains the same LibTorch).
// Contenders take turns. The figure is the median of five rounds; `low` and `high` are the smallest and the
// largest ratio of a round. A scale below 1 runs fewer rounds and steps; options.models, .ranks and .rounds
// select a part.
std::vector<Figure> RunTrainBench(const BenchOptions& options);

// Returns the names that options.models accepts.
std::vector<std::string> TrainBenchModels();

}  // namespace scalelab::bench
