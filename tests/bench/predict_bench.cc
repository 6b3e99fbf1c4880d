#include "tests/bench/predict_bench.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "server/prediction/predict.h"
#include "tests/bench/emulated_cluster.h"

namespace scalelab::bench {
namespace {

constexpr uint64_t kSeed = 20'261'124;
constexpr double kNominal = 90, kMedianTarget = 10;

// The study of a configuration: its results, and its cell that has not begun.
class EmulatedStudy {
 public:
  using StudyData = server::StudyData;

  EmulatedStudy(const EmulatedConfiguration& configuration, bool times, std::mt19937_64& random)
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
        AddRun(ranks, repeat, Run(configuration, ranks, blocks[repeat], random), times);
    }
    AddCell(configuration.target);
    data_.rows.emplace_back().cell_id = data_.cells.back().id;
    data_.rows.back().attempts = 0;
    for (const double block : blocks)
      reached_ += Run(configuration, configuration.target, block, random).throughput / configuration.repeats;
  }
  StudyData& data() { return data_; }
  // Returns the mean throughput of the repeats of the target, which the prediction is compared with.
  double reached() const { return reached_; }

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
  void AddRun(int ranks, int repeat, const EmulatedRun& run, bool with_times) {
    db::CurveRow& row = data_.rows.emplace_back();
    row.cell_id = data_.cells.back().id;
    row.repeat = repeat;
    row.state = db::RunState::kSucceeded;
    row.throughput = run.throughput;
    row.fingerprint = "emulated";
    row.attempt_id = static_cast<int64_t>(data_.rows.size());
    if (!with_times) return;
    db::RunTimes& times = data_.times.emplace_back();
    times.attempt_id = row.attempt_id;
    const auto of_ranks = static_cast<size_t>(ranks);
    times.step.assign(of_ranks, run.parts.compute + run.parts.exposed);
    times.exposed.assign(of_ranks, run.parts.exposed);
    times.data.assign(of_ranks, 0);
    if (ranks > 1) times.comm_total = run.parts.communication;
  }

  const EmulatedConfiguration& configuration_;
  StudyData data_;
  double reached_ = 0;
};

struct Scores {
  std::vector<double> errors, widths;
  double covered = 0;

  void Add(const db::PredictionRow& row, double reached) {
    errors.push_back(std::abs(row.predicted / reached - 1));
    widths.push_back(std::log(row.high / row.low) / 2);
    covered += row.low <= reached && reached <= row.high;
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

}  // namespace

std::vector<Figure> RunPredictBench(const BenchOptions& options) {
  const int studies = std::max(20, static_cast<int>(600 * options.scale));
  std::vector<Figure> figures;
  for (const bool times : {true, false}) {
    std::map<std::string, Scores> scores;
    std::mt19937_64 random(kSeed);
    for (int i = 0; i < studies; ++i) {
      const EmulatedConfiguration configuration = DrawConfiguration(random);
      EmulatedStudy study(configuration, times, random);
      const auto predictions = server::PredictCells(study.data(), study.data(), {}, false);
      if (predictions.size() != 1 || !predictions[0].refused.empty()) return {};
      const std::string kind = times ? "predict/with times of ranks" : "predict/from throughputs";
      for (const std::string& name : {kind, absl::StrCat(kind, configuration.strong ? "/strong" : "/weak"),
                                      absl::StrCat(kind, "/noise ", configuration.noise)})
        scores[name].Add(predictions[0].row, study.reached());
    }
    for (auto& [name, of_name] : scores) of_name.AppendTo(name, figures);
  }
  return figures;
}

}  // namespace scalelab::bench
