#include "worker/trainer/strategies/pipeline/schedule.h"

#include <algorithm>
#include <limits>

#include "worker/trainer/errors.h"

namespace scalelab::trainer::pipeline {

Schedule ParseSchedule(const std::string& name) {
  if (name == "gpipe") return Schedule::kGpipe;
  if (name == "1f1b") return Schedule::k1f1b;
  throw TrainerError("unknown pipeline_schedule \"" + name + "\": use gpipe or 1f1b");
}

std::vector<Pass> PassesOf(Schedule schedule, int stage, int stages, int64_t parts) {
  const int64_t first_passes =
      schedule == Schedule::kGpipe ? parts : std::min<int64_t>(parts, stages - 1 - stage);
  std::vector<Pass> passes;
  for (int64_t part = 0; part < first_passes; ++part) passes.push_back({.forward = true, .part = part});
  for (int64_t part = 0; part < parts; ++part) {
    if (first_passes + part < parts) passes.push_back({.forward = true, .part = first_passes + part});
    passes.push_back({.forward = false, .part = part});
  }
  return passes;
}

double IdealBubble(int stages, int64_t parts) {
  return static_cast<double>(stages - 1) / static_cast<double>(parts + stages - 1);
}

std::vector<size_t> DivideByCost(const std::vector<double>& costs, int stages) {
  const size_t blocks = costs.size();
  std::vector<double> until(blocks + 1, 0);  // until[n]: the sum of the first n costs
  for (size_t i = 0; i < blocks; ++i) until[i + 1] = until[i] + costs[i];
  // largest[s][n] is the cost of the largest stage if the first n blocks are divided into s + 1 stages.
  // last[s][n] is the first block of the last of these stages.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> largest(stages, std::vector<double>(blocks + 1, kNever));
  std::vector<std::vector<size_t>> last(stages, std::vector<size_t>(blocks + 1, 0));
  for (size_t n = 1; n <= blocks; ++n) largest[0][n] = until[n];
  for (int s = 1; s < stages; ++s) {
    for (size_t n = s + 1; n <= blocks; ++n) {
      for (size_t begin = s; begin < n; ++begin) {
        const double found = std::max(largest[s - 1][begin], until[n] - until[begin]);
        if (found >= largest[s][n]) continue;
        largest[s][n] = found;
        last[s][n] = begin;
      }
    }
  }
  std::vector<size_t> begins(stages + 1, blocks);
  for (int s = stages - 1; s >= 0; --s) begins[s] = last[s][begins[s + 1]];
  return begins;
}

}  // namespace scalelab::trainer::pipeline
