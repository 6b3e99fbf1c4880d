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

}  // namespace

absl::Status MakeStudyCurve(db::Store& store, const db::StudyRow& study, bool factors,
                            const std::function<bool()>& over, v1::GetCurveResponse* curve) {
  // Factors need the times of ranks, whose reading takes about as long as the rest of the curve. So another thread reads them
  // meanwhile; the future waits for its end.
  std::future<absl::StatusOr<std::vector<db::RunTimes>>> times;
  if (factors) {
    try {
      times = std::async(std::launch::async, [&] { return store.ListRunTimes(study.id); });
    } catch (const std::system_error&) {
      // The system has no thread left; this one reads them below.
    }
  }
  v1::StudySpec spec;
  if (auto s = FromJson(study.spec, &spec); !s.ok()) return s;
  const auto cells = store.ListCells(study.id);
  if (!cells.ok()) return cells.status();
  const auto rows = store.ListCurveRows(study.id);
  if (!rows.ok()) return rows.status();
  const auto values = store.ListCellValues(study.id);
  if (!values.ok()) return values.status();
  if (over()) return absl::CancelledError("nobody waits for the curve");
  const auto parameters = ReadCells(*values, *cells);
  if (!parameters.ok()) return parameters.status();
  const std::vector<ComparedRun> compared = RunsToCompare(*cells, *parameters, *rows);
  const auto losses = ReadLosses(store, compared);
  if (!losses.ok()) return losses.status();
  const auto attempts = store.ListAttemptTimes(study.id, *rows);
  if (!attempts.ok()) return attempts.status();
  if (over()) return absl::CancelledError("nobody waits for the curve");
  const CurveOptions options;
  CurvePlaces places;
  auto differences = CompareTraining(*cells, compared, *losses);
  differences.merge(DifferencesByDesign(*cells, *parameters));
  *curve = MakeCurve(spec, *cells, *parameters, *rows, options, differences,
                     FindConcurrency(*attempts, *rows), &places);
  const ExplainedRows explained{*cells, *parameters, *rows, places};
  AddTimesToTarget(explained, *curve);
  if (factors) {
    const auto of_ranks = times.valid() ? times.get() : store.ListRunTimes(study.id);
    if (!of_ranks.ok()) return of_ranks.status();
    AddFactors(explained, *of_ranks, options, *curve);
  }
  curve->set_study(absl::StrCat("studies/", study.id));
  curve->set_display_name(study.name);
  return absl::OkStatus();
}

}  // namespace scalelab::server
