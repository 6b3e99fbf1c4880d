#include "tests/bench/events_bench.h"

#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace scalelab::bench {
namespace {

constexpr int kRanks = 2, kSteps = 210, kWarmup = 10;

struct Cell {
  std::string model;
  int batch;  // per rank
};

// Milliseconds per step of one training, the mean of its ranks.
struct Step {
  double with = 0, without = 0;
};

// Trains once. Returns nothing, after printing the reason, if the training failed.
std::optional<Step> Train(const Cell& cell, const std::string& parent) {
  const std::string directory = parent + "/run", spec = directory + "/spec.json";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  std::ofstream(spec) << nlohmann::json{
      {"engine", "pytorch/ddp"}, {"model", cell.model},
      {"dataset", "synthetic"},  {"train_samples", kSteps * cell.batch * kRanks},
      {"ranks", kRanks},         {"batch_per_rank", cell.batch},
      {"learning_rate", 0.01},   {"warmup_steps", kWarmup}};
  std::string command =
      absl::StrCat("export OMP_NUM_THREADS=1 WORLD_SIZE=", kRanks, " SCALELAB_SPEC=", spec,
                   " SCALELAB_ATTEMPT_DIR=", directory,
                   " SCALELAB_TRAINER=" SCALELAB_BIN_DIR "/scalelab-trainer; cd ", directory, ";");
  for (int rank = kRanks - 1; rank >= 0; --rank) {
    absl::StrAppend(&command, " RANK=", rank, " SCALELAB_EVENTS=", directory, "/events-", rank,
                    " /usr/bin/python3 " SCALELAB_SOURCE_DIR
                    "/tests/bench/toggled_events.py"
                    " " SCALELAB_SOURCE_DIR "/worker/adapters/pytorch_ddp.py ",
                    directory, "/steps-", rank, rank > 0 ? " &" : "; wait");
  }
  if (std::system(command.c_str()) == -1) return {};
  Step step;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::ifstream file(absl::StrCat(directory, "/steps-", rank));
    const auto found = nlohmann::json::parse(file, nullptr, false);
    if (!found.is_object()) {
      std::cerr << "scalelab-bench: worker/adapters/pytorch_ddp.py did not finish; its output is above\n";
      return {};
    }
    step.with += 1000 * found["with"].get<double>() / kRanks;
    step.without += 1000 * found["without"].get<double>() / kRanks;
  }
  return step;
}

// Returns the number that a program prints; NaN if it fails.
double PathMicroseconds(const std::string& command) {
  double microseconds = NAN;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    if (fscanf(pipe, "%lf", &microseconds) != 1) microseconds = NAN;
    pclose(pipe);
  }
  return microseconds;
}

}  // namespace

std::vector<Figure> RunEventsBench(const BenchOptions& options) {
  const int rounds =
      options.rounds > 0 ? options.rounds : std::max(1, static_cast<int>(5 * std::min(1.0, options.scale)));
  std::vector<Figure> figures;
  double shortest = HUGE_VAL;  // microseconds
  for (const Cell& cell : {Cell{"resnet20", 16}, Cell{"resnet20", 64}}) {
    std::vector<double> with, without, ratios;
    for (int round = 0; round < rounds; ++round) {
      const std::optional<Step> step = Train(cell, options.directory);
      if (!step) return {};
      with.push_back(step->with);
      without.push_back(step->without);
      ratios.push_back(step->with / step->without);
    }
    Figure figure{absl::StrCat("events/", cell.model, "_b", cell.batch, "_r", kRanks),
                  Median(with),
                  "ms",
                  "the same steps without step events",
                  Median(without),
                  Median(ratios)};
    figure.low = std::ranges::min(ratios);
    figure.high = std::ranges::max(ratios);
    figures.push_back(figure);
    shortest = std::min(shortest, 1000 * figure.against_value);
  }
  // Step events of the native trainer cannot be switched off, so compare with a step of the adapter. The
  // trainer's own steps are shorter than this step.
  for (const auto& [name, program] :
       {std::pair("events/path", "/usr/bin/python3 " SCALELAB_SOURCE_DIR "/tests/bench/step_events.py "),
        std::pair("events/native_path", SCALELAB_BIN_DIR "/scalelab-bench-steps ")}) {
    const double path = PathMicroseconds(program + options.directory);
    figures.push_back({name, path, "us", "the shortest step above", shortest, path / shortest});
  }
  return figures;
}

}  // namespace scalelab::bench
