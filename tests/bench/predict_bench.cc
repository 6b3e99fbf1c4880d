#include "tests/bench/predict_bench.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/prediction/conformal.h"
#include "server/prediction/predict.h"
#include "tests/bench/emulation/emulated_cluster.h"
#include "tests/bench/emulation/moving_cluster.h"
#include "tests/bench/emulation/recorded_steps.h"

namespace scalelab::bench {
namespace {

constexpr uint64_t kSeed = 20'261'124;
constexpr double kNominal = 90, kMedianTarget = 10;
constexpr double kSlack = 10;  // `slack` of RunMoving in real time

// The data that the ranks of a study report.
enum class Reports { kThroughputs, kTimes, kBuckets };

// The study of a configuration: its results, and its cell that has not begun.
class EmulatedStudy {
 public:
  using RunOf = std::function<EmulatedRun(int ranks, double block)>;

  EmulatedStudy(const EmulatedConfiguration& configuration, const RunOf& run, std::mt19937_64& random)
      : configuration_(configuration) {
    data_.study.id = 1;
    data_.spec.mutable_scaling()->set_mode(configuration.strong ? v1::Scaling::STRONG : v1::Scaling::WEAK);
    data_.spec.mutable_resources()->set_ranks_per_node(configuration.ranks_per_node);
    std::normal_distribution<double> normal;
    std::vector<double> blocks;
    for (int i = 0; i < configuration.repeats; ++i)
      blocks.push_back(std::exp(configuration.block_noise * normal(random)));
    for (const int ranks : configuration.measured) {
      AddCell(ranks);
      for (int repeat = 0; repeat < configuration.repeats; ++repeat)
        AddRun(ranks, repeat, run(ranks, blocks[repeat]));
    }
    AddCell(configuration.target);
    data_.rows.emplace_back().cell_id = data_.cells.back().id;
    data_.rows.back().attempts = 0;
    for (const double block : blocks)
      reached_ += run(configuration.target, block).throughput / configuration.repeats;
  }
  const EmulatedConfiguration& configuration() const { return configuration_; }
  // Returns the prediction of the target with its score; nothing if it is refused.
  std::optional<db::PredictionRow> Predict(Reports reports) const {
    server::StudyData data = data_;
    if (reports != Reports::kBuckets) data.recorded.clear();
    if (reports == Reports::kThroughputs) data.times.clear();
    const auto predictions = server::PredictCells(data, data, {}, false);
    if (predictions.size() != 1 || !predictions[0].refused.empty()) return std::nullopt;
    db::PredictionRow row = predictions[0].row;
    row.measured = reached_;
    return row;
  }

 private:
  void AddCell(int ranks) {
    db::CellRow& row = data_.cells.emplace_back();
    row.id = static_cast<int64_t>(data_.cells.size());
    row.position = static_cast<int>(row.id);
    row.ranks = ranks;
    scalelab::Cell cell;
    (*cell.key.mutable_fields())["ranks"].set_number_value(ranks);
    cell.spec.set_ranks(ranks);
    cell.spec.set_batch_per_rank(static_cast<int>(configuration_.BatchOfRank(ranks)));
    cell.spec.set_global_batch(static_cast<int>(configuration_.BatchOfRank(ranks) * ranks));
    data_.parameters.Add(cell);
  }
  void AddRun(int ranks, int repeat, const EmulatedRun& run) {
    db::CurveRow& row = data_.rows.emplace_back();
    row.cell_id = data_.cells.back().id;
    row.repeat = repeat;
    row.state = db::RunState::kSucceeded;
    row.throughput = run.throughput;
    row.fingerprint = "emulated";
    row.attempt_id = static_cast<int64_t>(data_.rows.size());
    db::RunTimes& times = data_.times.emplace_back();
    times.attempt_id = row.attempt_id;
    const auto of_ranks = static_cast<size_t>(ranks);
    times.ranks.assign(of_ranks, {run.parts.compute + run.parts.exposed, run.parts.exposed, 0});
    for (size_t rank = 0; rank < run.exposed.size(); ++rank) times.ranks[rank].exposed = run.exposed[rank];
    if (ranks > 1) times.comm_total = run.parts.communication;
    if (!run.recorded.buckets.empty()) data_.recorded[row.attempt_id] = run.recorded;
  }

  const EmulatedConfiguration configuration_;
  server::StudyData data_;
  double reached_ = 0;  // mean throughput of the repeats of the target; the prediction is compared with it
};

struct Scores {
  std::vector<double> errors, widths;
  double covered = 0;

  void Add(const db::PredictionRow& row) {
    errors.push_back(std::abs(row.predicted / *row.measured - 1));
    widths.push_back(std::log(row.high / row.low) / 2);
    covered += row.low <= *row.measured && *row.measured <= row.high;
  }
  void AppendTo(const std::string& name, std::vector<Figure>& figures) {
    const auto at = [](std::vector<double>& values, double share) {
      std::ranges::sort(values);
      return 100 * values[std::min(values.size() - 1, static_cast<size_t>(share * values.size()))];
    };
    const double percent = 100 * covered / static_cast<double>(errors.size());
    figures.push_back({name + "/median error", at(errors, 0.5), "%", "target", kMedianTarget,
                       at(errors, 0.5) / kMedianTarget});
    figures.push_back({name + "/90th percentile of the error", at(errors, 0.9), "%"});
    figures.push_back({name + "/coverage", percent, "%", "nominal", kNominal, percent / kNominal});
    figures.push_back({name + "/median half width", at(widths, 0.5), "%"});
  }
};

using Studies = std::vector<std::unique_ptr<EmulatedStudy>>;

// Appends the scores of predictions from the data that the ranks report. For "corrected", the intervals of a
// study are corrected by the scores of the earlier studies.
bool AppendScores(const Studies& studies, Reports reports, const std::string& kind,
                  std::vector<Figure>& figures) {
  std::map<std::string, Scores> scores;
  std::vector<db::PredictionRow> past;
  for (const auto& study : studies) {
    const std::optional<db::PredictionRow> row = study->Predict(reports);
    if (!row.has_value()) return false;
    const EmulatedConfiguration& c = study->configuration();
    for (const std::string& name :
         {kind, absl::StrCat(kind, c.strong ? "/strong" : "/weak"), absl::StrCat(kind, "/noise ", c.noise)})
      scores[name].Add(*row);
    db::PredictionRow corrected = *row;
    server::Correct(past, corrected);
    if (past.size() >= server::kLeastScores) scores[kind + "/corrected"].Add(corrected);
    past.push_back(*row);
  }
  for (auto& [name, of_name] : scores) of_name.AppendTo(name, figures);
  return true;
}

Studies SimulatedStudies(int count, uint64_t seed) {
  Studies studies;
  std::mt19937_64 random(seed);
  for (int i = 0; i < count; ++i) {
    const EmulatedConfiguration configuration = DrawConfiguration(random);
    const auto run = [&](int ranks, double block) { return Run(configuration, ranks, block, random); };
    studies.push_back(std::make_unique<EmulatedStudy>(configuration, run, random));
  }
  return studies;
}

// Emulates the studies in `lanes` threads. Each has a seed of its own, so the results do not depend on their number.
// Ranks compute the steps of `recorded`, if it is not empty.
Studies MovingStudies(int count, uint64_t seed, int lanes, double slack,
                      const std::vector<RecordedSteps>& recorded) {
  Studies studies(static_cast<size_t>(count));
  std::atomic<int> next = 0;
  const auto lane = [&] {
    for (int i = next++; i < count; i = next++) {
      std::mt19937_64 random(seed + static_cast<uint64_t>(i));
      EmulatedConfiguration configuration = DrawConfiguration(random);
      if (!recorded.empty()) UseRecordedSteps(recorded, random, configuration);
      const NetworkNoise network = DrawNetworkNoise(configuration, random);
      const auto run = [&](int ranks, double block) {
        return RunMoving(configuration, network, ranks, block, random, slack);
      };
      studies[static_cast<size_t>(i)] = std::make_unique<EmulatedStudy>(configuration, run, random);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < lanes; ++i) threads.emplace_back(lane);
  for (std::thread& thread : threads) thread.join();
  return studies;
}

// Returns the scores of `count` studies whose ranks move bytes.
std::vector<Figure> MovingFigures(int count, const std::string& name, const BenchOptions& options,
                                  const std::vector<RecordedSteps>& recorded) {
  const uint64_t seed = options.seed == 0 ? kSeed : options.seed;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  // In real time, a lane that waits for a core would be late, so leave one core to other programs.
  const int lanes = std::max(1, options.real_time ? cores - 1 : cores);
  const Studies moving = MovingStudies(count, seed, lanes, options.real_time ? kSlack : 0, recorded);
  std::vector<Figure> figures;
  for (const auto& [reports, kind] :
       std::map<Reports, std::string>{{Reports::kBuckets, "with buckets"},
                                      {Reports::kTimes, "with times of ranks"},
                                      {Reports::kThroughputs, "from throughputs"}})
    if (!AppendScores(moving, reports, absl::StrCat(name, kind), figures)) return {};
  return figures;
}

}  // namespace

std::vector<Figure> RunPredictBench(const BenchOptions& options) {
  std::vector<Figure> figures;
  for (const auto run : {RunSimulatedBench, RunMovingBench, RunRecordedBench}) {
    if (options.real_time && run == RunSimulatedBench) continue;
    const std::vector<Figure> of_part = run(options);
    if (of_part.empty()) return {};
    figures.insert(figures.end(), of_part.begin(), of_part.end());
  }
  return figures;
}

std::vector<Figure> RunSimulatedBench(const BenchOptions& options) {
  const uint64_t seed = options.seed == 0 ? kSeed : options.seed;
  std::vector<Figure> figures;
  const Studies simulated = SimulatedStudies(std::max(20, static_cast<int>(600 * options.scale)), seed);
  if (!AppendScores(simulated, Reports::kTimes, "predict/with times of ranks", figures)) return {};
  if (!AppendScores(simulated, Reports::kThroughputs, "predict/from throughputs", figures)) return {};
  return figures;
}

std::vector<Figure> RunMovingBench(const BenchOptions& options) {
  return MovingFigures(std::max(2, static_cast<int>(240 * options.scale)),
                       options.real_time ? "predict/real time, " : "predict/moved bytes, ", options, {});
}

std::vector<Figure> RunRecordedBench(const BenchOptions& options) {
  const std::vector<RecordedSteps> recorded = ReadRecordedSteps();
  if (recorded.empty()) return {};
  return MovingFigures(
      std::max(2, static_cast<int>(220 * options.scale)),
      options.real_time ? "predict/recorded steps in real time, " : "predict/recorded steps, ", options,
      recorded);
}

}  // namespace scalelab::bench
