#include "server/curves/study_curve.h"

#include <algorithm>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/code_versions.h"
#include "analysis/concurrency.h"
#include "analysis/curve.h"
#include "analysis/factors/explain_points.h"
#include "analysis/parallel.h"
#include "analysis/training.h"
#include "catalog/engines.h"
#include "db/provenance/run_codes.h"
#include "server/cells/cells.h"
#include "server/cells/message_json.h"

namespace scalelab::server {
namespace {

namespace v1 = scalelab::v1;

// Losses of at least kManyRuns runs are read by kThreads threads. The store has four connections for reads, and
// other calls need some of them.
constexpr size_t kManyRuns = 64, kThreads = 2;

// Reads the losses of the first steps and epochs of the runs to compare.
absl::StatusOr<std::vector<analysis::Losses>> ReadLosses(db::Store& store,
                                                         const std::vector<analysis::ComparedRun>& runs) {
  std::vector<analysis::Losses> losses(runs.size());
  std::vector<absl::Status> read(runs.size());
  const auto read_one = [&](size_t i) -> absl::Status {
    const int64_t attempt = runs[i].attempt_id;
    std::vector<std::pair<std::vector<int64_t>, std::vector<double>>> ranks;
    absl::Status steps = store.ReadPoints(
        {attempt, "train/loss", std::nullopt, analysis::kComparedSteps},
        [&](db::Series series) { ranks.emplace_back(std::move(series.step), std::move(series.value)); });
    if (!steps.ok()) return steps;
    losses[i].steps = analysis::MeanOverRanks(ranks);
    // An attempt that continued from a checkpoint does not have the first epochs, so its epochs are not compared.
    const auto add_epochs = [&](db::Series series) {
      if (!series.step.empty() && series.step.front() == 0) losses[i].epochs = std::move(series.value);
    };
    return store.ReadPoints({attempt, "epoch/train_loss", 0, analysis::kComparedEpochs}, add_epochs);
  };
  analysis::ForEachInParallel(runs.size(), runs.size() < kManyRuns ? 1 : kThreads,
                              [&](size_t i) { read[i] = read_one(i); });
  for (absl::Status& status : read) {
    if (!status.ok()) return std::move(status);
  }
  return losses;
}

// Reads the code of users' programs that the runs of the study executed.
absl::StatusOr<analysis::RunCodes> ReadCodes(db::Store& store, int64_t study_id) {
  const auto read = db::ListRunCodes(store, study_id);
  if (!read.ok()) return read.status();
  analysis::RunCodes codes;
  for (const std::string& text : read->texts) {
    if (auto s = FromJson(text, &codes.codes.emplace_back()); !s.ok()) return s;
  }
  for (const db::RunCode& run : read->runs) codes.of_run[run.run_id] = run.text;
  return codes;
}

using FutureTimes = std::future<absl::StatusOr<std::vector<db::RunTimes>>>;

// `times` is invalid if the curve has no factors.
absl::Status MakeCurve(db::Store& store, const db::StudyRow& study, const StudyInput& input,
                       FutureTimes times, const std::function<bool()>& over, v1::GetCurveResponse* curve,
                       const analysis::ReferenceRuns* reference) {
  const std::vector<db::CellRow>& cells = input.cells;
  const std::vector<db::CurveRow>& rows = *input.rows;
  auto concurrency = analysis::Meanwhile([&]() -> absl::StatusOr<std::vector<analysis::Concurrency>> {
    const auto attempts = store.ListAttemptTimes(study.id, rows);
    if (!attempts.ok()) return attempts.status();
    return analysis::FindConcurrency(*attempts, rows);
  });
  if (over()) return absl::CancelledError("nobody waits for the curve");
  const std::vector<analysis::ComparedRun> compared = analysis::RunsToCompare(cells, input.parameters, rows);
  const auto losses = ReadLosses(store, compared);
  if (!losses.ok()) return losses.status();
  const auto concurrent = concurrency.get();
  if (!concurrent.ok()) return concurrent.status();
  if (over()) return absl::CancelledError("nobody waits for the curve");
  const analysis::CurveOptions options;
  analysis::CurvePlaces places;
  auto differences = analysis::CompareTraining(cells, compared, *losses);
  differences.merge(analysis::DifferencesByDesign(cells, input.parameters));
  *curve = analysis::MakeCurve(input.spec, cells, input.parameters, rows, options, differences, *concurrent,
                               &places);
  const analysis::ExplainedRows explained{cells, input.parameters, rows, places, reference};
  analysis::AddTimesToTarget(explained, *curve);
  if (std::any_of(cells.begin(), cells.end(),
                  [](const db::CellRow& cell) { return RunsOwnProgram(cell.engine); })) {
    const auto codes = ReadCodes(store, study.id);
    if (!codes.ok()) return codes.status();
    analysis::AddCodeVersions(cells, rows, places, *codes, *curve);
  }
  if (times.valid()) {
    const auto of_ranks = times.get();
    if (!of_ranks.ok()) return of_ranks.status();
    analysis::AddFactors(explained, *of_ranks, options, *curve);
  }
  curve->set_study(absl::StrCat("studies/", study.id));
  curve->set_display_name(study.name);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StudyInput> ReadStudyInput(db::Store& store, const db::StudyRow& study) {
  StudyInput input;
  if (auto s = FromJson(study.spec, &input.spec); !s.ok()) return s;
  auto cells = store.ListCells(study.id);
  if (!cells.ok()) return cells.status();
  auto rows = store.ListCurveRows(study.id);
  if (!rows.ok()) return rows.status();
  const auto values = store.ListCellValues(study.id);
  if (!values.ok()) return values.status();
  auto parameters = ReadCells(*values, *cells);
  if (!parameters.ok()) return parameters.status();
  input.cells = *std::move(cells);
  input.rows = *std::move(rows);
  input.parameters = *std::move(parameters);
  return input;
}

absl::Status MakeStudyCurve(db::Store& store, const db::StudyRow& study, bool factors,
                            const std::function<bool()>& over, v1::GetCurveResponse* curve,
                            const analysis::ReferenceRuns* reference) {
  // Factors need the times of ranks. Read them on another thread, because that takes about as long as the
  // rest of the curve.
  FutureTimes times;
  if (factors) times = analysis::Meanwhile([&] { return store.ListRunTimes(study.id); });
  const auto input = ReadStudyInput(store, study);
  if (!input.ok()) return input.status();
  return MakeCurve(store, study, *input, std::move(times), over, curve, reference);
}

absl::Status MakeStudyCurve(db::Store& store, const db::StudyRow& study, const StudyInput& input,
                            const std::function<bool()>& over, v1::GetCurveResponse* curve) {
  return MakeCurve(store, study, input, FutureTimes(), over, curve, nullptr);
}

absl::StatusOr<analysis::ReferenceRuns> ReadReference(db::Store& store, const db::StudyRow& study) {
  const auto input = ReadStudyInput(store, study);
  if (!input.ok()) return input.status();
  const auto times = store.ListRunTimes(study.id);
  if (!times.ok()) return times.status();
  return analysis::ReferenceOf(absl::StrCat("studies/", study.id), input->cells, input->parameters,
                               *input->rows, *times);
}

}  // namespace scalelab::server
