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
#include <string>

#include "absl/strings/str_cat.h"

namespace scalelab::bench {
namespace {

constexpr int kRanks = 2, kSteps = 60, kWarmup = 10;

struct Cell {
  std::string model;
  int batch;  // of a rank
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Milliseconds of a step of one run; NaN, after saying why, when it failed.
double StepMilliseconds(const Cell& cell, bool tell, const std::string& parent) {
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
                   " SCALELAB_ATTEMPT_DIR=", directory, " SCALELAB_STEP_EVENTS=", tell ? 1 : 0,
                   " SCALELAB_TRAINER=" SCALELAB_BIN_DIR "/scalelab-trainer; cd ", directory, ";");
  for (int rank = kRanks - 1; rank >= 0; --rank) {
    absl::StrAppend(&command, " RANK=", rank, " SCALELAB_EVENTS=", directory, "/events-", rank,
                    " /usr/bin/python3 " SCALELAB_SOURCE_DIR "/worker/adapters/pytorch_ddp.py",
                    rank > 0 ? " &" : "; wait");
  }
  if (std::system(command.c_str()) == -1) return NAN;
  std::vector<double> milliseconds;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::ifstream events(absl::StrCat(directory, "/events-", rank));
    for (std::string line; std::getline(events, line);) {
      const auto event = nlohmann::json::parse(line, nullptr, false);
      if (event.is_object() && event.value("event", "") == "finish")
        milliseconds.push_back(1000 * event["metrics"].value("run/step_seconds", NAN));
    }
  }
  if (milliseconds.size() != kRanks) {
    std::cerr << "scalelab-bench: worker/adapters/pytorch_ddp.py did not finish; its words stand above\n";
    return NAN;
  }
  return (milliseconds[0] + milliseconds[1]) / 2;
}

// What a program says; NaN when it cannot be found out.
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
      options.rounds > 0 ? options.rounds : std::max(1, static_cast<int>(9 * std::min(1.0, options.scale)));
  std::vector<Figure> figures;
  double shortest = HUGE_VAL;  // microseconds
  for (const Cell& cell : {Cell{"resnet20", 16}, Cell{"resnet20", 64}}) {
    std::vector<double> with, without, ratios;
    for (int round = 0; round < rounds; ++round) {
      double milliseconds[2];  // without step events, with them
      for (const int turn : {round % 2, 1 - round % 2}) {
        milliseconds[turn] = StepMilliseconds(cell, turn == 1, options.directory);
        if (std::isnan(milliseconds[turn])) return {};
      }
      without.push_back(milliseconds[0]);
      with.push_back(milliseconds[1]);
      ratios.push_back(milliseconds[1] / milliseconds[0]);
    }
    Figure figure{absl::StrCat("events/", cell.model, "_b", cell.batch, "_r", kRanks),
                  Median(with),
                  "ms",
                  "the same without step events",
                  Median(without),
                  Median(ratios)};
    figure.low = std::ranges::min(ratios);
    figure.high = std::ranges::max(ratios);
    figures.push_back(figure);
    shortest = std::min(shortest, 1000 * figure.against_value);
  }
  // Step events of the native trainer cannot be switched off; its own steps are shorter than this one.
  for (const auto& [name, program] :
       {std::pair("events/path", "/usr/bin/python3 " SCALELAB_SOURCE_DIR "/tests/bench/step_events.py "),
        std::pair("events/native_path", SCALELAB_BIN_DIR "/scalelab-bench-steps ")}) {
    const double path = PathMicroseconds(program + options.directory);
    figures.push_back({name, path, "us", "the shortest step above", shortest, path / shortest});
  }
  return figures;
}

}  // namespace scalelab::bench
