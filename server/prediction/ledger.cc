#include "server/prediction/ledger.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "analysis/curve.h"
#include "analysis/statistics.h"
#include "server/cells/cells.h"
#include "server/core/convert.h"
#include "server/prediction/conformal.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr int kScoredAtOnce = 1000;
constexpr int kMostScores = 1000;       // number of newest scores that correct an interval
constexpr int kRepeatsWithBuckets = 5;  // further repeats add little to the means of their times
constexpr size_t kMostBuckets = 64;     // the limit of BucketTimes in the trainer
constexpr double kMostSeconds = 1e6, kMostBytes = 1e15;

v1::Prediction ToRefusal(const CellPrediction& prediction) {
  v1::Prediction refusal = ToPrediction(prediction.row);
  refusal.clear_name();
  refusal.clear_predicted();
  refusal.clear_models();
  refusal.clear_create_time();
  refusal.set_state(v1::Prediction::REFUSED);
  refusal.set_reason(prediction.refused);
  return refusal;
}

// Sets the score of a prediction from the results of its cell.
void Score(const StudyData& study, db::PredictionRow& row) {
  row.state = db::PredictionRow::State::kUnresolved;
  std::vector<double> throughputs;
  bool elsewhere = false;
  for (const db::CurveRow& run : study.rows) {
    if (run.cell_id != row.cell_id || run.state != db::RunState::kSucceeded) continue;
    if (!run.throughput.has_value() || !std::isfinite(*run.throughput) || *run.throughput <= 0) continue;
    if (run.fingerprint == row.fingerprint) {
      throughputs.push_back(*run.throughput);
    } else {
      elsewhere = true;
    }
  }
  if (throughputs.empty()) {
    row.reason = elsewhere ? "its runs used other hardware or software than the results of the prediction"
                           : "its runs ended without a throughput";
    return;
  }
  const v1::Estimate measured = analysis::EstimateMean(
      throughputs, analysis::CriticalValues(analysis::CurveOptions().confidence), 0, analysis::kNoLimit);
  row.state = db::PredictionRow::State::kScored;
  row.measured = measured.mean();
  if (measured.has_low()) row.measured_low = measured.low();
  if (measured.has_high()) row.measured_high = measured.high();
}

// Sets the member of a recorded step that a metric describes, such as
// "bucket/backward_s" or "bucket/3/bytes".
void SetRecorded(const std::string& name, double value, RecordedStep& step) {
  if (name == "bucket/backward_s") {
    step.backward = value;
    return;
  }
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  size_t bucket = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &bucket) || bucket >= kMostBuckets) return;
  if (step.buckets.size() <= bucket) step.buckets.resize(bucket + 1);
  if (parts[2] == "bytes") step.buckets[bucket].bytes = value;
  if (parts[2] == "ready_s") step.buckets[bucket].ready = value;
  if (parts[2] == "reduce_s") step.buckets[bucket].reduce = value;
}

// Returns whether a step can be simulated: all its numbers are plausible, and each bucket has bytes.
bool Possible(const RecordedStep& step) {
  const auto possible = [](double seconds) { return seconds >= 0 && seconds < kMostSeconds; };
  return step.backward > 0 && possible(step.backward) && !step.buckets.empty() &&
         std::ranges::all_of(step.buckets, [&](const RecordedBucket& bucket) {
           return bucket.bytes > 0 && bucket.bytes < kMostBytes && possible(bucket.ready) &&
                  possible(bucket.reduce);
         });
}

}  // namespace

absl::StatusOr<StudyData> ReadStudyData(db::Store& store, db::StudyRow study) {
  StudyData data;
  if (auto s = FromJson(study.spec, &data.spec); !s.ok()) return s;
  auto cells = store.ListCells(study.id);
  if (!cells.ok()) return cells.status();
  auto rows = store.ListCurveRows(study.id);
  if (!rows.ok()) return rows.status();
  const auto values = store.ListCellValues(study.id);
  if (!values.ok()) return values.status();
  auto parameters = ReadCells(*values, *cells);
  if (!parameters.ok()) return parameters.status();
  auto times = store.ListRunTimes(study.id);
  if (!times.ok()) return times.status();
  data.times = *std::move(times);
  const auto buckets = db::ListBucketMetrics(store, study.id, kRepeatsWithBuckets);
  if (!buckets.ok()) return buckets.status();
  for (const db::BucketMetricRow& row : *buckets)
    SetRecorded(row.name, row.value, data.recorded[row.attempt_id]);
  std::erase_if(data.recorded, [](const auto& step) { return !Possible(step.second); });
  data.study = std::move(study);
  data.cells = *std::move(cells);
  data.rows = **rows;
  data.parameters = *std::move(parameters);
  return data;
}

v1::Prediction ToPrediction(const db::PredictionRow& row) {
  v1::Prediction prediction;
  if (row.id != 0) prediction.set_name(absl::StrCat("predictions/", row.id));
  prediction.set_study(StudyName(row.study_id));
  prediction.set_display_name(row.study_name);
  prediction.set_source_study(StudyName(row.source_id));
  if (!FromJson(row.key, prediction.mutable_key()).ok()) prediction.clear_key();
  prediction.set_ranks(row.ranks);
  prediction.set_largest_measured(row.largest);
  v1::Estimate& predicted = *prediction.mutable_predicted();
  predicted.set_mean(row.predicted);
  predicted.set_median(row.predicted);
  predicted.set_low(row.low);
  predicted.set_high(row.high);
  for (const auto& [name, throughput] : row.models) {
    if (IsNote(name) || IsNetwork(name)) continue;
    v1::ModelPrediction& model = *prediction.add_models();
    model.set_model(name);
    model.set_throughput(throughput);
  }
  prediction.set_state(static_cast<v1::Prediction::State>(row.state));
  std::vector<std::string> notes = {row.reason.empty() ? CorrectionText(row) : row.reason, NetworkText(row)};
  std::erase(notes, "");
  prediction.set_reason(absl::StrJoin(notes, "; "));
  if (row.created != 0) SetTime(row.created, prediction.mutable_create_time());
  if (row.scored != 0) SetTime(row.scored, prediction.mutable_score_time());
  if (!row.measured.has_value()) return prediction;
  v1::Estimate& measured = *prediction.mutable_measured();
  measured.set_mean(*row.measured);
  measured.set_median(*row.measured);
  if (row.measured_low.has_value()) measured.set_low(*row.measured_low);
  if (row.measured_high.has_value()) measured.set_high(*row.measured_high);
  prediction.set_error(row.predicted / *row.measured - 1);
  prediction.set_covered(row.low <= *row.measured && *row.measured <= row.high);
  return prediction;
}

v1::PredictionSummary Summarise(const db::PredictionScores& scores) {
  v1::PredictionSummary summary;
  summary.set_predictions(static_cast<int32_t>(scores.predictions));
  summary.set_scored(static_cast<int32_t>(scores.errors.size()));
  summary.set_covered(static_cast<int32_t>(scores.covered));
  if (scores.errors.empty()) return summary;
  std::vector<float> sizes;
  for (const double error : scores.errors) sizes.push_back(static_cast<float>(std::abs(error)));
  summary.set_median_error(analysis::Quantile(sizes, 0.5));
  summary.set_p90_error(analysis::Quantile(sizes, 0.9));
  return summary;
}

absl::StatusOr<std::vector<v1::Prediction>> MakePredictions(db::Store& store, const StudyData& source,
                                                            const StudyData& target,
                                                            const std::vector<int>& ranks, bool dry_run,
                                                            db::Micros now,
                                                            const std::optional<RingCost>& network) {
  std::vector<CellPrediction> made = PredictCells(source, target, ranks, dry_run, network);
  const auto scored = db::ListScoredPredictions(store, kMostScores);
  if (!scored.ok()) return scored.status();
  std::vector<db::PredictionRow> rows;
  for (CellPrediction& prediction : made) {
    prediction.row.created = now;
    if (prediction.refused.empty()) Correct(*scored, prediction.row);
    if (prediction.refused.empty() && !dry_run) rows.push_back(prediction.row);
  }
  const auto stored = db::AddPredictions(store, rows);
  if (!stored.ok()) return stored.status();
  std::vector<v1::Prediction> predictions;
  size_t next = 0;
  for (CellPrediction& prediction : made) {
    if (prediction.refused.empty() && !dry_run) {
      if (const auto& row = (*stored)[next++]; row.has_value()) {
        predictions.push_back(ToPrediction(*row));
        continue;
      }
      prediction.refused = "its runs have begun, so a prediction would come too late";
    }
    predictions.push_back(prediction.refused.empty() ? ToPrediction(prediction.row) : ToRefusal(prediction));
    predictions.back().clear_create_time();
  }
  return predictions;
}

absl::StatusOr<int> ScorePredictions(db::Store& store, db::Micros now) {
  auto rows = db::ListPredictionsToScore(store, kScoredAtOnce);
  if (!rows.ok()) return rows.status();
  std::map<int64_t, std::vector<db::PredictionRow*>> by_study;
  for (db::PredictionRow& row : *rows) by_study[row.study_id].push_back(&row);
  for (const auto& [study_id, of_study] : by_study) {
    StudyData data;
    const absl::StatusOr<db::SharedCurveRows> results = store.ListCurveRows(study_id);
    if (!results.ok() && !absl::IsNotFound(results.status())) return results.status();
    if (results.ok()) data.rows = **results;
    for (db::PredictionRow* row : of_study) {
      Score(data, *row);
      if (data.rows.empty()) row->reason = "its study was deleted before it had a score";
      row->scored = now;
      if (auto s = db::SetPredictionScore(store, *row); !s.ok()) return s;
    }
  }
  return static_cast<int>(rows->size());
}

Scorer::Scorer(db::Store& store, absl::Duration period) : store_(store), period_(period) {
  thread_ = std::thread([this] { Run(); });
}

Scorer::~Scorer() { Stop(absl::InfiniteDuration()); }

bool Scorer::Stop(absl::Duration grace) {
  if (!thread_.joinable()) return true;
  bool ended = true;
  stop_.Stop();
  {
    SteadyMutexLock lock(&mutex_);
    const auto over = [this] {
      mutex_.AssertHeld();
      return ended_;
    };
    ended = mutex_.AwaitWithTimeout(over, grace);
  }
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return ended;
}

void Scorer::Run() {
  do {
    const auto scored = ScorePredictions(store_, absl::ToUnixMicros(absl::Now()));
    if (!scored.ok()) {
      spdlog::error("predictions cannot be scored, and are tried again: {}", scored.status().ToString());
    } else if (*scored > 0) {
      spdlog::info("{} predictions have got their scores", *scored);
    }
  } while (!stop_.WaitFor(period_));
  SteadyMutexLock lock(&mutex_);
  ended_ = true;
  mutex_.SignalAll();
}

}  // namespace scalelab::server
