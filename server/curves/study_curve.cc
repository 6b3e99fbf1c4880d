#include "server/curves/study_curve.h"

#include <future>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/analysis/concurrency.h"
#include "server/analysis/curve.h"
#include "server/analysis/factors/explain_points.h"
#include "server/analysis/training.h"
#include "server/cells/cells.h"
#include "server/cells/message_json.h"

namespace scalelab::server {
namespace {

namespace v1 = scalelab::v1;

// Reads the losses of the first steps and epochs of the runs to compare.
absl::StatusOr<std::vector<Losses>> ReadLosses(db::Store& store, const std::vector<ComparedRun>& runs) {
  std::vector<Losses> losses;
  for (const ComparedRun& run : runs) {
    Losses& of_run = losses.emplace_back();
    std::vector<std::pair<std::vector<int64_t>, std::vector<double>>> ranks;
    absl::Status read = store.ReadPoints(
        {run.attempt_id, "train/loss", std::nullopt, kComparedSteps},
        [&](db::Series series) { ranks.emplace_back(std::move(series.step), std::move(series.value)); });
    if (!read.ok()) return read;
    of_run.steps = MeanOverRanks(ranks);
    read = store.ReadPoints({run.attempt_id, "epoch/train_loss", 0, kComparedEpochs}, [&](db::Series series) {
      // An attempt that continued a run lacks the first epochs.
      if (series.step.front() == 0) of_run.epochs = std::move(series.value);
    });
    if (!read.ok()) return read;
  }
  return losses;
}

// Calls `work` on another thread or, if the system has no thread left, when its result is needed. The future of a thread waits
// for its end when it is destroyed.
template <class Work>
auto Meanwhile(Work work) {
  try {
    return std::async(std::launch::async, work);
  } catch (const std::system_error&) {
    return std::async(std::launch::deferred, work);
  }
}

}  // namespace

absl::Status MakeStudyCurve(db::Store& store, const db::StudyRow& study, bool factors,
                            const std::function<bool()>& over, v1::GetCurveResponse* curve) {
  // Factors need the times of ranks, whose reading takes about as long as the rest of the curve.
  std::future<absl::StatusOr<std::vector<db::RunTimes>>> times;
  if (factors) times = Meanwhile([&] { return store.ListRunTimes(study.id); });
  v1::StudySpec spec;
  if (auto s = FromJson(study.spec, &spec); !s.ok()) return s;
  const auto cells = store.ListCells(study.id);
  if (!cells.ok()) return cells.status();
  const auto shared_rows = store.ListCurveRows(study.id);
  if (!shared_rows.ok()) return shared_rows.status();
  const std::vector<db::CurveRow>& rows = **shared_rows;
  auto concurrency = Meanwhile([&]() -> absl::StatusOr<std::vector<Concurrency>> {
    const auto attempts = store.ListAttemptTimes(study.id, rows);
    if (!attempts.ok()) return attempts.status();
    return FindConcurrency(*attempts, rows);
  });
  const auto values = store.ListCellValues(study.id);
  if (!values.ok()) return values.status();
  if (over()) return absl::CancelledError("nobody waits for the curve");
  const auto parameters = ReadCells(*values, *cells);
  if (!parameters.ok()) return parameters.status();
  const std::vector<ComparedRun> compared = RunsToCompare(*cells, *parameters, rows);
  const auto losses = ReadLosses(store, compared);
  if (!losses.ok()) return losses.status();
  const auto concurrent = concurrency.get();
  if (!concurrent.ok()) return concurrent.status();
  if (over()) return absl::CancelledError("nobody waits for the curve");
  const CurveOptions options;
  CurvePlaces places;
  auto differences = CompareTraining(*cells, compared, *losses);
  differences.merge(DifferencesByDesign(*cells, *parameters));
  *curve = MakeCurve(spec, *cells, *parameters, rows, options, differences, *concurrent, &places);
  const ExplainedRows explained{*cells, *parameters, rows, places};
  AddTimesToTarget(explained, *curve);
  if (factors) {
    const auto of_ranks = times.get();
    if (!of_ranks.ok()) return of_ranks.status();
    AddFactors(explained, *of_ranks, options, *curve);
  }
  curve->set_study(absl::StrCat("studies/", study.id));
  curve->set_display_name(study.name);
  return absl::OkStatus();
}

}  // namespace scalelab::server
