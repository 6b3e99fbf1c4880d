#include "server/services/result_service.h"

#include <deque>
#include <memory>

#include "server/analysis/curve.h"
#include "server/analysis/downsample.h"
#include "server/analysis/training.h"
#include "server/core/convert.h"
#include "server/services/lookup.h"
#include "server/services/reactors.h"

namespace scalelab::server {
namespace {

constexpr size_t kPointsPerMessage = 32'768;  // about 1 MB

void AddSeries(const db::Series& series, int max_points, std::deque<v1::ReadPointsResponse>* out) {
  const size_t n = series.value.size();
  std::vector<size_t> chosen;
  if (max_points > 0) {
    chosen =
        Downsample({series.step.begin(), series.step.end()}, series.value, static_cast<size_t>(max_points));
  }
  const size_t count = max_points > 0 ? chosen.size() : n;
  for (size_t k = 0; k < count; ++k) {
    if (k % kPointsPerMessage == 0) {
      out->emplace_back();
      out->back().set_key(series.key);
      out->back().set_rank(series.rank);
    }
    const size_t i = max_points > 0 ? chosen[k] : k;
    out->back().add_step(series.step[i]);
    out->back().add_time(series.time[i]);
    out->back().add_value(series.value[i]);
  }
}

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
    read = store.ReadPoints({run.attempt_id, "epoch/train_loss", 0, kComparedEpochs},
                            [&](db::Series series) { of_run.epochs = std::move(series.value); });
    if (!read.ok()) return read;
  }
  return losses;
}

}  // namespace

grpc::ServerUnaryReactor* ResultService::GetCurve(grpc::CallbackServerContext* context,
                                                  const v1::GetCurveRequest* request,
                                                  v1::GetCurveResponse* response) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  const auto study = FindStudy(store_, request->study());
  if (!study.ok()) return Answer(context, study.status());
  v1::StudySpec spec;
  if (auto s = FromJson(study->spec, &spec); !s.ok()) return Answer(context, s);
  const auto cells = store_.ListCells(study->id);
  if (!cells.ok()) return Answer(context, cells.status());
  const auto rows = store_.ListCurveRows(study->id);
  if (!rows.ok()) return Answer(context, rows.status());
  const std::vector<ComparedRun> compared = RunsToCompare(*cells, *rows);
  const auto losses = ReadLosses(store_, compared);
  if (!losses.ok()) return Answer(context, losses.status());
  *response = MakeCurve(spec, *cells, *rows, {}, CompareTraining(*cells, compared, *losses));
  response->set_study(StudyName(study->id));
  response->set_display_name(study->name);
  return Answer(context, absl::OkStatus());
}

grpc::ServerWriteReactor<v1::ReadPointsResponse>* ResultService::ReadPoints(
    grpc::CallbackServerContext* context, const v1::ReadPointsRequest* request) {
  using Stream = GeneratedStream<v1::ReadPointsResponse>;
  if (auto s = auth_.CheckClient(*context); !s.ok()) return new Stream(s);
  const auto run = FindRun(store_, request->run());
  if (!run.ok()) return new Stream(run.status());
  const auto attempt = FindAttempt(store_, *run, request->attempt());
  if (!attempt.ok()) return new Stream(attempt.status());
  db::PointFilter filter;
  filter.attempt_id = attempt->id;
  filter.key = request->key();
  if (request->has_rank()) filter.rank = request->rank();
  auto messages = std::make_shared<std::deque<v1::ReadPointsResponse>>();
  const absl::Status read = store_.ReadPoints(
      filter, [&](const db::Series& series) { AddSeries(series, request->max_points(), messages.get()); });
  if (!read.ok()) return new Stream(read);
  return new Stream([messages](v1::ReadPointsResponse* response) -> absl::StatusOr<bool> {
    if (messages->empty()) return false;
    *response = std::move(messages->front());
    messages->pop_front();
    return true;
  });
}

}  // namespace scalelab::server
