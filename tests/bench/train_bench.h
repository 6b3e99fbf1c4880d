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

// One short training of a native engine on synthetic images.
struct NativeTraining {
  std::string engine, model;
  int image_size = 32, classes = 10;
  int batch = 0, ranks = 1;  // batch per rank
  int steps = 0, warmup = 0;
};
// Trains with one thread per rank, and returns the lines of the event file of rank 0. `directory` is for its
// files.
std::vector<std::string> TrainNative(const NativeTraining& training, const std::string& directory);

// Returns the names that options.models accepts.
std::vector<std::string> TrainBenchModels();

}  // namespace scalelab::bench
