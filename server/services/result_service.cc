#include "server/services/result_service.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "analysis/downsample.h"
#include "db/continued_points.h"
#include "server/curves/study_curve.h"
#include "server/services/lookup.h"

namespace scalelab::server {
namespace {

constexpr size_t kPointsPerMessage = 32'768;  // about 1 MB
// The list of all series includes the points of series with at most kShortSeries points, up to kPointsKept
// points in total (about 2 MB).
constexpr size_t kShortSeries = 1024;
constexpr size_t kPointsKept = 65'536;

// Returns the points of an attempt as messages. Reads one long series at a time, so that its memory does not
// grow with the number of series. Reads the next series when the client has received the previous one.
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
      if (series_ == list_.size()) return false;
      if (auto s = Read(list_[series_++]); !s.ok()) return s;
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

  // Returns whether Next returns without reading the database: the points are in memory, or there are
  // no more points.
  bool Ready() const {
    if (!listed_) return false;
    if (sent_ < count_) return count_ <= kShortSeries;
    return series_ == list_.size() || !list_[series_].points.value.empty();
  }

 private:
  // A series of the attempt, with its points if they have been read.
  struct Listed {
    std::string key;
    int rank = 0;
    db::Series points;
  };

  absl::Status List() {
    const auto run = FindRun(store_, *client_, request_.run());
    if (!run.ok()) {
      access_.Audit(*client_, run.status());
      return run.status();
    }
    const auto attempt = FindAttempt(store_, *run, request_.attempt());
    if (!attempt.ok()) return attempt.status();
    if (auto s = CheckPointsKept(store_, *run, *attempt); !s.ok()) return s;
    if (auto s = Choose(*run, *attempt); !s.ok()) return s;
    filter_.key = request_.key();
    if (request_.has_rank()) filter_.rank = request_.rank();
    listed_ = true;
    db::PointFilter first = filter_;
    // With several attempts, a limit for each attempt does not limit the joined series. Then read
    // no points here.
    first.first = attempts_.size() == 1 ? kShortSeries + 1 : 1;
    size_t kept = 0;
    return db::ReadContinuedPoints(store_, attempts_, first, [&](db::Series series) {
      const size_t points = series.value.size();
      Listed& listed = list_.emplace_back(Listed{series.key, series.rank, {}});
      if (points >= first.first || kept + points > kPointsKept) return;
      kept += points;
      listed.points = std::move(series);
    });
  }

  // Chooses the attempts whose points are joined. If the request names an attempt, this is the only one.
  absl::Status Choose(const db::RunRow& run, const db::AttemptRow& attempt) {
    attempts_ = {attempt};
    if (request_.attempt() != 0 || attempt.resumed_step == 0) return absl::OkStatus();
    const auto all = store_.ListAttempts(run.id);
    if (!all.ok()) return all.status();
    attempts_ = db::AttemptsContinued(*all, attempt.number);
    return absl::OkStatus();
  }

  // Returns NOT_FOUND if the study was deleted, or retention has removed the points, after they were listed. Without the
  // error, the caller would assume that the points already sent are complete.
  absl::Status CheckStillKept() {
    const auto run = FindRun(store_, *client_, request_.run());
    if (!run.ok()) return run.status();
    return CheckPointsKept(store_, *run, attempts_.front());
  }

  absl::Status Read(Listed& listed) {
    read_ = std::move(listed.points);
    sent_ = count_ = 0;
    if (read_.value.empty()) {
      filter_.key = listed.key;
      filter_.rank = listed.rank;
      const absl::Status read = db::ReadContinuedPoints(
          store_, attempts_, filter_, [&](db::Series series) { read_ = std::move(series); });
      if (!read.ok()) return read;
      if (read_.value.empty()) {
        if (auto s = CheckStillKept(); !s.ok()) return s;
      }
    }
    chosen_.clear();
    if (request_.max_points() > 0) {
      chosen_ = analysis::Downsample({read_.step.begin(), read_.step.end()}, read_.value,
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
  std::vector<db::AttemptRow> attempts_;  // newest first
  bool listed_ = false;
  std::vector<Listed> list_;
  size_t series_ = 0;            // index of the next series to send
  db::Series read_;              // the series that is being sent
  std::vector<size_t> chosen_;   // with max_points: indexes of the points of read_ to send
  size_t count_ = 0, sent_ = 0;  // number of points of read_ to send, and of those already sent
};

// Computes the requested curve. `over` returns true once the call has ended.
absl::Status FillCurve(db::Store& store, ClientCall& call, const v1::GetCurveRequest& request,
                       const std::function<bool()>& over, v1::GetCurveResponse* curve) {
  std::optional<analysis::ReferenceRuns> reference;
  if (!request.reference().empty()) {
    const auto found = FindStudy(store, call, request.reference());
    if (!found.ok()) return found.status();
    auto runs = ReadReference(store, *found);
    if (!runs.ok()) return runs.status();
    reference = *std::move(runs);
  }
  // The last study that is found is the target of the call.
  const auto study = FindStudy(store, call, request.study());
  if (!study.ok()) return study.status();
  const absl::Status made = MakeStudyCurve(store, *study, request.factors() || reference.has_value(), over,
                                           curve, reference.has_value() ? &*reference : nullptr);
  return absl::IsCancelled(made) ? CallerGone() : made;
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
  const auto client = BeginStream<v1::ReadPointsResponse>(handler_, *context);
  if (!client.ok()) return Stream::Fail(client.status());
  auto reader = std::make_shared<PointReader>(handler_, *client, *request);
  return Stream::Start(
      handler_.pools.reads, handler_.pools.timers, **client, handler_.call_limit,
      [reader](v1::ReadPointsResponse* response) { return reader->Next(response); }, Subject{},
      [reader] { return reader->Ready(); });
}

}  // namespace scalelab::server
