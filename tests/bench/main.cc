// scalelab-bench: prints one JSON line per figure. Measurements belong into benchmarks, not into tests
// with time limits.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/synchronization/mutex.h"
#include "spdlog/spdlog.h"
#include "tests/bench/allreduce_bench.h"
#include "tests/bench/coverage_bench.h"
#include "tests/bench/events_bench.h"
#include "tests/bench/predict_bench.h"
#include "tests/bench/query_bench.h"
#include "tests/bench/service_bench.h"
#include "tests/bench/store_bench.h"
#include "tests/bench/train_bench.h"

// NOLINTNEXTLINE(bugprone-exception-escape): a benchmark that fails ends with the message of its exception.
int main(int argc, char** argv) {
  using namespace scalelab::bench;
  const std::map<std::string, std::vector<Figure> (*)(const BenchOptions&)> benches = {
      {"submit", RunSubmitBench},       {"ingest", RunIngestBench},       {"dispatch", RunDispatchBench},
      {"cells", RunCellsBench},         {"query", RunQueryBench},         {"store", RunStoreBench},
      {"train", RunTrainBench},         {"allreduce", RunAllReduceBench}, {"events", RunEventsBench},
      {"shortruns", RunShortRunsBench}, {"service", RunServiceBench},     {"memory", RunMemoryBench},
      {"coverage", RunCoverageBench},   {"prune", RunPruneBench},         {"predict", RunPredictBench},
      {"advise", RunAdviseBench},       {"viewers", RunViewersBench},     {"parameters", RunParametersBench}};

  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // see server/main.cc
  CLI::App app{"Benchmarks of scalelab; one JSON line a figure"};
  BenchOptions options;
  std::string parent = std::filesystem::temp_directory_path();
  app.require_subcommand(1);
  app.add_option("--scale", options.scale, "Factor for the amount of work; targets are for 1")
      ->check(CLI::PositiveNumber);
  app.add_option("--directory", parent,
                 "Where databases are made and removed: use the disk you want to measure");
  app.add_subcommand("list", "Name the benchmarks");
  for (const auto& [name, run] : benches) app.add_subcommand(name, "Measure " + name)->fallthrough();
  CLI::App* train = app.get_subcommand("train");
  train->add_option("--models", options.models, "Models to train, with commas between; all if not given")
      ->delimiter(',')
      ->check(CLI::IsMember(TrainBenchModels()));
  train->add_option("--ranks", options.ranks, "Numbers of ranks, with commas between")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train->add_option("--rounds", options.rounds, "Rounds of all contenders in place of what --scale gives")
      ->check(CLI::PositiveNumber);
  app.get_subcommand("events")
      ->add_option("--rounds", options.rounds, "Rounds in place of what --scale gives")
      ->check(CLI::PositiveNumber);
  app.get_subcommand("memory")
      ->add_option("--cases", options.cases, "Cases to measure, with commas between; all if not given")
      ->delimiter(',');
  app.get_subcommand("viewers")
      ->add_option("--viewers", options.viewers, "Number of browsers")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.get_subcommand("predict")->add_option("--seed", options.seed, "Seed of the emulated studies");
  app.get_subcommand("predict")->add_flag(
      "--real-time", options.real_time,
      "Only the studies whose ranks move bytes, in real time: about half an hour");
  app.get_subcommand("predict")->add_option(
      "--record", options.record,
      "Predict nothing: record steps of the native trainer in this file, for recorded_steps.csv");
  app.get_subcommand("allreduce")
      ->add_option("--ranks", options.all_reduce_ranks, "Ranks")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  if (app.got_subcommand("list")) {
    for (const auto& [name, run] : benches) std::cout << name << "\n";
    return 0;
  }
  spdlog::set_level(spdlog::level::warn);
  const std::string name = app.get_subcommands().front()->get_name();
  std::string pattern = parent + "/scalelab-bench-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) {
    std::cerr << "scalelab-bench: cannot make a directory in " << parent << "; choose another --directory\n";
    return 1;
  }
  options.directory = pattern;
  const std::vector<Figure> figures =
      options.record.empty() ? benches.at(name)(options) : RecordSteps(options);
  for (const Figure& f : figures) {
    nlohmann::ordered_json line{{"name", f.name},
                                {"value", f.value},
                                {"unit", f.unit},
                                {"against", f.against},
                                {"against_value", f.against_value},
                                {"ratio", f.ratio}};
    if (f.high > 0) line["low"] = f.low, line["high"] = f.high;
    std::cout << line << std::endl;
  }
  std::filesystem::remove_all(options.directory);
  return figures.empty() ? 1 : 0;
}
