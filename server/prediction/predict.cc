#include "server/prediction/predict.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "analysis/curve.h"
#include "analysis/statistics.h"
#include "server/core/convert.h"
#include "server/prediction/models.h"
#include "server/prediction/replay.h"

namespace scalelab::server {
namespace {

using google::protobuf::Struct;

// Beyond these multiples of the largest measured world size, the predictions of the models differ too much.
constexpr int kMostStrong = 4, kMostWeak = 8;
constexpr size_t kLeastSizes = 3;
constexpr int kResamples = 500;
// Keys of the network in PredictionRow::models, which is stored as a map of names to numbers.
constexpr char kAlpha[] = "network seconds of a message", kBeta[] = "network seconds of a byte";

std::string Ranks(int ranks) { return absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks"); }

bool Strong(const v1::StudySpec& spec) { return spec.scaling().mode() != v1::Scaling::WEAK; }

int NodesOf(int ranks, int ranks_per_node) {
  return ranks_per_node == 0 ? 1 : (ranks - 1) / ranks_per_node + 1;
}

// Returns a text that is equal for cells with the same parameters. Ignores the ranks, the parameters that
// usually follow from the ranks, the seed and the length of the training.
std::string WithoutRanks(v1::RunSpec run, bool strong) {
  run.clear_ranks();
  if (strong) {
    run.clear_batch_per_rank();
  } else {
    run.clear_global_batch();
  }
  run.clear_learning_rate();
  run.clear_warmup_start_rate();
  run.clear_warmup_epochs();
  run.clear_seed();
  run.clear_epochs();
  run.clear_max_steps();
  run.clear_warmup_steps();
  return absl::StrCat(strong ? "strong " : "weak ", ToJson(run));
}

// A series of the source with the results that models need.
struct Series {
  Struct key;
  std::string fingerprint;
  std::vector<MeasuredSize> measured;
  std::vector<RecordedSize> recorded;  // the measured sizes whose ranks reported their times
  double noise = 0;  // relative half width of the interval of the largest world size's speedup
  std::string without_ranks;
};

// The numbers of the cells of a study, by ToJson of the key without ranks, and by ranks.
using CellNumbers = std::map<std::pair<std::string, int>, size_t>;

CellNumbers NumberCells(const StudyData& study) {
  CellNumbers numbers;
  for (size_t i = 0; i < study.cells.size(); ++i) {
    Struct key = study.parameters.Key(i);
    key.mutable_fields()->erase("ranks");
    numbers.emplace(std::pair(ToJson(key), study.cells[i].ranks), i);
  }
  return numbers;
}

// The times of runs, by the attempt that produced the results.
using TimesOfAttempts = std::map<int64_t, const db::RunTimes*>;

// The rows of runs that have succeeded, by cell id and fingerprint, in the order of StudyData::rows.
using SucceededRows = std::map<std::pair<int64_t, std::string>, std::vector<const db::CurveRow*>>;

SucceededRows GroupSucceeded(const StudyData& study) {
  SucceededRows groups;
  for (const db::CurveRow& row : study.rows) {
    if (row.state == db::RunState::kSucceeded) groups[{row.cell_id, row.fingerprint}].push_back(&row);
  }
  return groups;
}

// Returns the mean parts of a step of a cell's runs; nothing if one of them did not report them.
std::optional<MeanStepParts> ReadParts(const StudyData& source, size_t cell,
                                       const std::vector<const db::CurveRow*>& rows,
                                       const TimesOfAttempts& times) {
  MeanStepParts sums;
  double runs = 0;
  for (const db::CurveRow* row : rows) {
    const auto found = times.find(row->attempt_id);
    if (found == times.end()) return std::nullopt;
    const db::RunTimes& of_run = *found->second;
    if (of_run.ranks.empty() || (source.cells[cell].ranks > 1 && !of_run.comm_total)) return std::nullopt;
    // The slowest rank waits least.
    const double exposed = std::ranges::min(of_run.ranks, {}, &db::RunTimes::Rank::exposed).exposed;
    std::vector<double> steps;
    for (const db::RunTimes::Rank& rank : of_run.ranks) steps.push_back(rank.step);
    sums.exposed += exposed;
    sums.compute += analysis::Mean(steps) - exposed;
    sums.communication += of_run.comm_total.value_or(0);
    ++runs;
  }
  if (runs == 0) return std::nullopt;
  const v1::RunSpec run = source.parameters.Spec(cell);
  const double batch = run.global_batch() > 0 ? static_cast<double>(run.global_batch()) / run.ranks()
                                              : static_cast<double>(run.batch_per_rank());
  return MeanStepParts{sums.compute / runs, sums.exposed / runs, sums.communication / runs, batch};
}

// Returns the recorded steps of a cell's runs.
std::vector<RecordedStep> ReadRecorded(const StudyData& source,
                                       const std::vector<const db::CurveRow*>& rows) {
  std::vector<RecordedStep> steps;
  for (const db::CurveRow* row : rows) {
    if (const auto found = source.recorded.find(row->attempt_id); found != source.recorded.end())
      steps.push_back(found->second);
  }
  return steps;
}

Series ReadSeries(const StudyData& source, const CellNumbers& cells, const v1::CurveSeries& curve,
                  const SucceededRows& succeeded, const TimesOfAttempts& times) {
  Series series;
  series.key = curve.key();
  const std::string key = ToJson(series.key);
  series.fingerprint = curve.fingerprint();
  const v1::CurvePoint* largest = nullptr;
  for (const v1::CurvePoint& point : curve.points()) {
    if (point.n() == 0 || !(point.throughput().mean() > 0)) continue;
    series.measured.push_back({point.ranks(), point.throughput().mean()});
    largest = &point;
    if (times.empty()) continue;
    const auto cell = cells.find({key, point.ranks()});
    if (cell == cells.end()) continue;
    const auto rows = succeeded.find({source.cells[cell->second].id, series.fingerprint});
    if (rows == succeeded.end()) continue;
    if (const auto parts = ReadParts(source, cell->second, rows->second, times))
      series.recorded.push_back({point.ranks(), *parts, ReadRecorded(source, rows->second)});
  }
  if (largest == nullptr) return series;
  if (largest->speedup().has_low() && largest->speedup().low() > 0)
    series.noise = std::sqrt(largest->speedup().high() / largest->speedup().low()) - 1;
  if (const auto cell = cells.find({key, largest->ranks()}); cell != cells.end())
    series.without_ranks = WithoutRanks(source.parameters.Spec(cell->second), Strong(source.spec));
  return series;
}

// Returns the series with results, by the result of WithoutRanks. If a series ran on several kinds of
// hardware, returns the series on the hardware with the most runs.
std::map<std::string, Series> ReadAllSeries(const StudyData& source) {
  std::map<std::string, Series> all;
  TimesOfAttempts times;
  for (const db::RunTimes& of_run : source.times) times[of_run.attempt_id] = &of_run;
  const v1::GetCurveResponse curve = analysis::MakeCurve(source.spec, source.cells, source.parameters,
                                                         source.rows, {.resamples = kResamples});
  const CellNumbers cells = NumberCells(source);
  const SucceededRows succeeded = GroupSucceeded(source);
  for (const v1::CurveSeries& of_curve : curve.series()) {
    Series series = ReadSeries(source, cells, of_curve, succeeded, times);
    if (!series.without_ranks.empty()) all.try_emplace(series.without_ranks, std::move(series));
  }
  return all;
}

std::string WhyNotOnTarget(const StudyData& source, const StudyData& target) {
  const v1::Resources &from = source.spec.resources(), &to = target.spec.resources();
  if (from.ranks_per_node() == to.ranks_per_node() && from.partition() == to.partition()) return "";
  return absl::StrCat("the results are from ", StudyName(source.study.id),
                      ", which has another resources.ranks_per_node or resources.partition");
}

std::set<int64_t> BegunCells(const StudyData& study) {
  std::set<int64_t> cells;
  for (const db::CurveRow& row : study.rows) {
    if (row.state != db::RunState::kQueued || row.attempts > 0) cells.insert(row.cell_id);
  }
  return cells;
}

class Predictor {
 public:
  Predictor(const StudyData& source, const StudyData& target, const std::optional<RingCost>& network)
      : source_(source), target_(target), network_(network), begun_(BegunCells(target)) {}

  CellPrediction Predict(const Series& series, int ranks, const db::CellRow* cell) const {
    CellPrediction prediction;
    db::PredictionRow& row = prediction.row;
    row.study_id = target_.study.id;
    row.study_name = target_.study.name;
    row.owner = target_.study.owner;
    row.is_private = source_.study.is_private || target_.study.is_private;
    row.source_id = source_.study.id;
    row.key = ToJson(series.key);
    row.fingerprint = series.fingerprint;
    row.ranks = ranks;
    row.largest = series.measured.back().ranks;
    SizesOfSeries sizes{Strong(source_.spec), {}, source_.spec.resources().ranks_per_node()};
    for (const MeasuredSize& size : series.measured) sizes.measured.push_back(size.ranks);
    prediction.refused = WhyNotPredict(sizes, ranks);
    if (prediction.refused.empty()) prediction.refused = WhyNotOnTarget(source_, target_);
    if (cell != nullptr) {
      row.cell_id = cell->id;
      if (begun_.contains(cell->id))
        prediction.refused = "its runs have begun, so a prediction would come too late";
    }
    if (!prediction.refused.empty()) return prediction;
    bool with_network = false;
    PredictedThroughput predicted =
        PredictThroughput(series.measured, ranks, series.noise, Replay(series, ranks, with_network));
    row.predicted = predicted.mean;
    row.low = predicted.low;
    row.high = predicted.high;
    row.models = std::move(predicted.models);
    if (with_network) row.models[kAlpha] = network_->alpha, row.models[kBeta] = network_->beta;
    return prediction;
  }

 private:
  // Returns the throughput that the model "replay" predicts; nothing if a measured size has no times. Sets
  // `with_network` to whether the prediction depends on network_.
  std::optional<double> Replay(const Series& series, int ranks, bool& with_network) const {
    if (series.recorded.size() != series.measured.size()) return std::nullopt;
    const MeanStepParts& last = series.recorded.back().parts;
    const int ranks_per_node = source_.spec.resources().ranks_per_node();
    const double batch =
        Strong(source_.spec) ? last.batch * series.measured.back().ranks / ranks : last.batch;
    auto step = ReplayBuckets(series.recorded, ranks, batch, ranks_per_node, network_);
    with_network = step.has_value() && network_.has_value();
    if (!step.has_value()) {
      std::vector<PartsOfSize> parts;
      for (const RecordedSize& size : series.recorded) parts.push_back({size.ranks, size.parts});
      step = ReplayStep(parts, ranks, batch, ranks_per_node);
    }
    return step ? std::optional(ranks * batch / *step) : std::nullopt;
  }

  const StudyData& source_;
  const StudyData& target_;
  const std::optional<RingCost> network_;
  const std::set<int64_t> begun_;
};

}  // namespace

std::string WhyNotPredict(const SizesOfSeries& sizes, int ranks) {
  if (sizes.measured.size() < kLeastSizes)
    return absl::StrCat("only ", sizes.measured.size(),
                        sizes.measured.size() == 1 ? " world size has" : " world sizes have",
                        " results, and the models need three; measure another one");
  const int largest = sizes.measured.back();
  if (ranks <= largest)
    return absl::StrCat(Ranks(largest), " are measured, so ", Ranks(ranks), " need no extrapolation");
  const int most = sizes.strong ? kMostStrong : kMostWeak;
  if (ranks > most * largest)
    return absl::StrCat(Ranks(ranks), " are more than ", most, " times the largest measured world size, ",
                        largest, ", the limit with ", sizes.strong ? "strong" : "weak",
                        " scaling; measure a larger one");
  const int nodes = NodesOf(ranks, sizes.ranks_per_node);
  if (nodes > 1 && NodesOf(largest, sizes.ranks_per_node) == 1)
    return absl::StrCat(
        Ranks(ranks), " need ", nodes,
        " nodes, and all results are from one node, so the network between nodes is unknown; measure ",
        "two nodes first");
  return "";
}

std::vector<CellPrediction> PredictCells(const StudyData& source, const StudyData& target,
                                         const std::vector<int>& ranks, bool without_cells,
                                         const std::optional<RingCost>& network) {
  const std::map<std::string, Series> all = ReadAllSeries(source);
  const Predictor predictor(source, target, network);
  std::map<std::pair<std::string, int>, CellPrediction> predictions;  // by series and ranks
  for (size_t i = 0; i < target.cells.size(); ++i) {
    const db::CellRow& cell = target.cells[i];
    const bool wanted = ranks.empty() || std::find(ranks.begin(), ranks.end(), cell.ranks) != ranks.end();
    if (cell.excluded || !wanted) continue;
    const v1::RunSpec run = target.parameters.Spec(i);
    if (run.communication_baseline()) continue;
    const auto series = all.find(WithoutRanks(run, Strong(target.spec)));
    if (series == all.end() || (ranks.empty() && cell.ranks <= series->second.measured.back().ranks))
      continue;
    predictions.emplace(std::pair(series->first, cell.ranks),
                        predictor.Predict(series->second, cell.ranks, &cell));
  }
  for (const auto& [name, series] : all) {
    for (const int wanted : ranks) {
      if (predictions.contains({name, wanted})) continue;
      CellPrediction prediction = predictor.Predict(series, wanted, nullptr);
      if (!without_cells && prediction.refused.empty())
        prediction.refused =
            absl::StrCat(StudyName(target.study.id), " has no such cell with ", Ranks(wanted));
      predictions.emplace(std::pair(name, wanted), std::move(prediction));
    }
  }
  std::vector<CellPrediction> sorted;
  for (auto& [place, prediction] : predictions) sorted.push_back(std::move(prediction));
  std::stable_sort(sorted.begin(), sorted.end(), [](const CellPrediction& a, const CellPrediction& b) {
    return std::tie(a.row.key, a.row.ranks) < std::tie(b.row.key, b.row.ranks);
  });
  return sorted;
}

bool IsNetwork(const std::string& model) { return model == kAlpha || model == kBeta; }

std::string NetworkText(const db::PredictionRow& row) {
  const auto alpha = row.models.find(kAlpha), beta = row.models.find(kBeta);
  if (alpha == row.models.end() || beta == row.models.end()) return "";
  std::string text = absl::StrFormat("network as measured: %.4g us a message", 1e6 * alpha->second);
  if (beta->second > 0) absl::StrAppendFormat(&text, ", %.3g GB/s", 1e-9 / beta->second);
  return text;
}

}  // namespace scalelab::server
