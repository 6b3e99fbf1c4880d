// The order in which a stage of a pipeline runs the passes of one step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace scalelab::trainer::pipeline {

enum class Schedule {
  // All forward passes, then all backward passes (Huang et al. 2019, arXiv 1811.06965).
  kGpipe,
  // PipeDream-flush (Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Narayanan et al. 2019, arXiv
  // 1806.03377). A stage first makes as many forward passes as the later stages need to become busy. Then it
  // alternates between a forward and a backward pass. At the end, it makes the remaining backward passes.
  k1f1b,
};

// Returns the schedule of this name: "gpipe" or "1f1b". Throws TrainerError for others.
Schedule ParseSchedule(const std::string& name);

struct Pass {
  bool forward;
  int64_t part;  // the micro-batch
};

// Returns the passes of stage `stage` of `stages`. Backward passes have the order of the forward passes, like
// on a single rank.
std::vector<Pass> PassesOf(Schedule schedule, int stage, int stages, int64_t parts);

// Returns the share of time in which a stage is idle, if all stages take the same time and communication
// takes no time. It is (stages - 1) / (parts + stages - 1) for both schedules.
double IdealBubble(int stages, int64_t parts);

// Divides a sequence of blocks into `stages` contiguous parts of one or more blocks, and minimizes the
// largest sum of costs of a part. Returns the first block of each stage, followed by the number of blocks.
std::vector<size_t> DivideByCost(const std::vector<double>& costs, int stages);

}  // namespace scalelab::trainer::pipeline
