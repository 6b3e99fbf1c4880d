#include "server/services/result_service.h"

#include <algorithm>
#include <functional>
#include <memory>

#include "db/continued_points.h"
#include "server/analysis/downsample.h"
#include "server/curves/study_curve.h"
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
    if (auto s = Choose(*run, *attempt); !s.ok()) return s;
    filter_.key = request_.key();
    if (request_.has_rank()) filter_.rank = request_.rank();
    listed_ = true;
    db::PointFilter first = filter_;
    first.first = 1;
    return db::ReadContinuedPoints(store_, attempts_, first, [&](db::Series series) {
      names_.emplace_back(std::move(series.key), series.rank);
    });
  }

  // Chooses the attempts whose points belong together: only the requested one if the request names one.
  absl::Status Choose(const db::RunRow& run, const db::AttemptRow& attempt) {
    attempts_ = {attempt};
    if (request_.attempt() != 0 || attempt.resumed_step == 0) return absl::OkStatus();
    const auto all = store_.ListAttempts(run.id);
    if (!all.ok()) return all.status();
    attempts_ = db::AttemptsContinued(*all, attempt.number);
    return absl::OkStatus();
  }

  absl::Status Read(const std::pair<std::string, int>& name) {
    filter_.key = name.first;
    filter_.rank = name.second;
    read_ = db::Series();
    sent_ = count_ = 0;
    const absl::Status read = db::ReadContinuedPoints(store_, attempts_, filter_,
                                                      [&](db::Series series) { read_ = std::move(series); });
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
  std::vector<db::AttemptRow> attempts_;  // newest first
  bool listed_ = false;
  std::vector<std::pair<std::string, int>> names_;  // key and rank of each series
  size_t series_ = 0;                               // index of the next one to read
  db::Series read_;                                 // the one to send
  std::vector<size_t> chosen_;                      // with max_points: indexes of its points to send
  size_t count_ = 0, sent_ = 0;                     // its points to send, and those already sent
};

// Computes the requested curve. `over` returns whether nobody waits for it any more.
absl::Status FillCurve(db::Store& store, ClientCall& call, const v1::GetCurveRequest& request,
                       const std::function<bool()>& over, v1::GetCurveResponse* curve) {
  const auto study = FindStudy(store, call, request.study());
  if (!study.ok()) return study.status();
  const absl::Status made = MakeStudyCurve(store, *study, request.factors(), over, curve);
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
  auto client = BeginStream<v1::ReadPointsResponse>(handler_, *context);
  if (!client.ok()) return Stream::Fail(client.status());
  auto reader = std::make_shared<PointReader>(handler_, *std::move(client), *request);
  return Stream::Start(handler_.pools.reads, handler_.call_limit,
                       [reader](v1::ReadPointsResponse* response) { return reader->Next(response); });
}

}  // namespace scalelab::server
