#include "server/services/result_service.h"

#include <algorithm>
#include <functional>
#include <memory>

#include "server/analysis/concurrency.h"
#include "server/analysis/curve.h"
#include "server/analysis/downsample.h"
#include "server/analysis/factors/explain_points.h"
#include "server/analysis/training.h"
#include "server/core/cells.h"
#include "server/core/convert.h"
#include "server/services/lookup.h"

namespace scalelab::server {
namespace {

constexpr size_t kPointsPerMessage = 32'768;  // about 1 MB

// The points of an attempt, as messages. Reads one series at a time, so that its memory does not grow with the
// number of series, and nothing is read before the client has taken what was read before.
class PointReader {
 public:
  PointReader(const HandlerContext& handler, std::shared_ptr<ClientCall> client,
              v1::ReadPointsRequest request)
      : access_(handler.access),
        store_(handler.store),
        client_(std::move(client)),
        request_(std::move(request)) {}

  absl::StatusOr<bool> Next(v1::ReadPointsResponse* response) {
    if (!listed_) {
      if (auto s = List(); !s.ok()) return s;
    }
    while (sent_ == count_) {
      if (series_ == names_.size()) return false;
      if (auto s = Read(names_[series_++]); !s.ok()) return s;
    }
    response->set_key(read_.key);
    response->set_rank(read_.rank);
    for (const size_t end = std::min(count_, sent_ + kPointsPerMessage); sent_ < end; ++sent_) {
      const size_t i = request_.max_points() > 0 ? chosen_[sent_] : sent_;
      response->add_step(read_.step[i]);
      response->add_time(read_.time[i]);
      response->add_value(read_.value[i]);
    }
    return true;
  }

 private:
  absl::Status List() {
    const auto run = FindRun(store_, *client_, request_.run());
    if (!run.ok()) {
      access_.Audit(*client_, run.status());
      return run.status();
    }
    const auto attempt = FindAttempt(store_, *run, request_.attempt());
    if (!attempt.ok()) return attempt.status();
    if (auto s = CheckPointsKept(store_, *run, *attempt); !s.ok()) return s;
    filter_.attempt_id = attempt->id;
    filter_.key = request_.key();
    if (request_.has_rank()) filter_.rank = request_.rank();
    listed_ = true;
    db::PointFilter first = filter_;
    first.first = 1;
    return store_.ReadPoints(
        first, [&](db::Series series) { names_.emplace_back(std::move(series.key), series.rank); });
  }

  absl::Status Read(const std::pair<std::string, int>& name) {
    filter_.key = name.first;
    filter_.rank = name.second;
    read_ = db::Series();
    sent_ = count_ = 0;
    const absl::Status read =
        store_.ReadPoints(filter_, [&](db::Series series) { read_ = std::move(series); });
    if (!read.ok()) return read;
    chosen_.clear();
    if (request_.max_points() > 0) {
      chosen_ = Downsample({read_.step.begin(), read_.step.end()}, read_.value,
                           static_cast<size_t>(request_.max_points()));
    }
    count_ = request_.max_points() > 0 ? chosen_.size() : read_.value.size();
    return absl::OkStatus();
  }

  const Access& access_;
  db::Store& store_;
  const std::shared_ptr<ClientCall> client_;
  const v1::ReadPointsRequest request_;
  db::PointFilter filter_;
  bool listed_ = false;
  std::vector<std::pair<std::string, int>> names_;  // key and rank of each series
  size_t series_ = 0;                               // index of the next one to read
  db::Series read_;                                 // the one to send
  std::vector<size_t> chosen_;                      // with max_points: indexes of its points to send
  size_t count_ = 0, sent_ = 0;                     // its points to send, and those already sent
};

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

// Computes the requested curve. `over` returns whether nobody waits for it any more.
absl::Status FillCurve(db::Store& store, ClientCall& call, const v1::GetCurveRequest& request,
                       const std::function<bool()>& over, v1::GetCurveResponse* curve) {
  const auto study = FindStudy(store, call, request.study());
  if (!study.ok()) return study.status();
  v1::StudySpec spec;
  if (auto s = FromJson(study->spec, &spec); !s.ok()) return s;
  const auto cells = store.ListCells(study->id);
  if (!cells.ok()) return cells.status();
  const auto rows = store.ListCurveRows(study->id);
  if (!rows.ok()) return rows.status();
  const auto values = store.ListCellValues(study->id);
  if (!values.ok()) return values.status();
  if (over()) return CallerGone();
  const auto parameters = ReadCells(*values, *cells);
  if (!parameters.ok()) return parameters.status();
  const std::vector<ComparedRun> compared = RunsToCompare(*cells, *parameters, *rows);
  const auto losses = ReadLosses(store, compared);
  if (!losses.ok()) return losses.status();
  const auto attempts = store.ListAttemptTimes(study->id);
  if (!attempts.ok()) return attempts.status();
  if (over()) return CallerGone();
  const CurveOptions options;
  CurvePlaces places;
  *curve = MakeCurve(spec, *cells, *parameters, *rows, options, CompareTraining(*cells, compared, *losses),
                     FindConcurrency(*attempts, *rows), &places);
  const ExplainedRows explained{*cells, *parameters, *rows, places};
  AddTimesToTarget(explained, *curve);
  if (request.factors()) {
    const auto times = store.ListRunTimes(study->id);
    if (!times.ok()) return times.status();
    AddFactors(explained, *times, options, *curve);
  }
  curve->set_study(StudyName(study->id));
  curve->set_display_name(study->name);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* ResultService::GetCurve(grpc::CallbackServerContext* context,
                                                  const v1::GetCurveRequest* request,
                                                  v1::GetCurveResponse* response) {
  return AnswerOn(handler_.pools.heavy, handler_, context, response, [this, request = *request](auto& call) {
    return FillCurve(
        handler_.store, call.client(), request, [&call] { return call.over(); }, &call.response);
  });
}

grpc::ServerWriteReactor<v1::ReadPointsResponse>* ResultService::ReadPoints(
    grpc::CallbackServerContext* context, const v1::ReadPointsRequest* request) {
  using Stream = GeneratedStream<v1::ReadPointsResponse>;
  auto client = BeginStream<v1::ReadPointsResponse>(handler_, *context);
  if (!client.ok()) return Stream::Fail(client.status());
  auto reader = std::make_shared<PointReader>(handler_, *std::move(client), *request);
  return Stream::Start(handler_.pools.reads, handler_.call_limit,
                       [reader](v1::ReadPointsResponse* response) { return reader->Next(response); });
}

}  // namespace scalelab::server
