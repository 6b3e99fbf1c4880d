#include "server/services/result_service.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "db/continued_points.h"
#include "server/curves/series_stream.h"
#include "server/curves/study_curve.h"
#include "server/services/lookup.h"

namespace scalelab::server {
namespace {

// A read continues with the next series until it has kPointsAhead points (about 2 MB), kPiecesAhead pieces, or a piece
// with more than kShortPiece points.
constexpr size_t kPointsAhead = 65'536, kPiecesAhead = 1024, kShortPiece = 1024;

// Returns the points of an attempt as messages. Reads the names of the series in pages and the points in pieces, so
// that its memory does not grow with the number of series or points: at most some megabytes. Reads the next pieces
// when the client has received the previous ones. Each piece is a read of its own: points that are stored during the
// call may be among those returned or not, and the call fails if points are deleted.
class PointReader {
 public:
  PointReader(const HandlerContext& handler, std::shared_ptr<ClientCall> client,
              v1::ReadPointsRequest request)
      : access_(handler.access),
        store_(handler.store),
        client_(std::move(client)),
        request_(std::move(request)) {}

  absl::StatusOr<bool> Next(v1::ReadPointsResponse* response) {
    if (!begun_) {
      if (auto s = Begin(); !s.ok()) return s;
    }
    if (pieces_.empty()) {
      if (auto s = ReadAhead(); !s.ok()) return s;
    }
    if (pieces_.empty()) return false;
    const db::Series& piece = pieces_.front();
    response->set_key(piece.key);
    response->set_rank(piece.rank);
    response->mutable_step()->Add(piece.step.begin(), piece.step.end());
    response->mutable_time()->Add(piece.time.begin(), piece.time.end());
    response->mutable_value()->Add(piece.value.begin(), piece.value.end());
    pieces_.pop_front();
    return true;
  }

  // Returns whether Next returns without reading the database: a short piece is in memory, or there are
  // no more points.
  bool Ready() const { return pieces_.empty() ? ended_ : pieces_.front().value.size() <= kShortPiece; }

 private:
  absl::Status Begin() {
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
    begun_ = true;
    return absl::OkStatus();
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

  // Reads pieces into pieces_, which is empty. Reads none if all points were sent.
  absl::Status ReadAhead() {
    for (size_t points = 0; !ended_ && points < kPointsAhead && pieces_.size() < kPiecesAhead;) {
      if (!stream_.has_value()) {
        if (auto s = BeginSeries(); !s.ok()) return s;
        continue;
      }
      absl::StatusOr<db::Series> piece = stream_->Next();
      if (absl::IsNotFound(piece.status())) {
        if (auto s = CheckStillKept(); !s.ok()) return s;
      }
      if (!piece.ok()) return piece.status();
      if (stream_->done()) stream_.reset();
      const size_t count = piece->value.size();
      points += count;
      if (count > 0) pieces_.push_back(*std::move(piece));
      if (count > kShortPiece) break;
    }
    return absl::OkStatus();
  }

  // Begins the next series, or sets ended_.
  absl::Status BeginSeries() {
    if (name_ == names_.size()) {
      if (last_page_) {
        ended_ = true;
        return CheckStillKept();
      }
      const db::SeriesName after = names_.empty() ? db::SeriesName() : names_.back();
      auto page = db::ListContinuedSeries(store_, attempts_, filter_, after, db::kSeriesPerPage);
      if (!page.ok()) return page.status();
      last_page_ = page->size() < db::kSeriesPerPage;
      names_ = *std::move(page);
      name_ = 0;
      return absl::OkStatus();
    }
    stream_.emplace(db::SeriesReader(store_, attempts_, names_[name_++]),
                    static_cast<size_t>(std::max(0, request_.max_points())));
    return absl::OkStatus();
  }

  // Returns NOT_FOUND if the study was deleted, or retention has removed the points, during the call. Without the
  // error, the caller would assume that the points already sent are complete.
  absl::Status CheckStillKept() {
    const auto run = FindRun(store_, *client_, request_.run());
    if (!run.ok()) return run.status();
    return CheckPointsKept(store_, *run, attempts_.front());
  }

  const Access& access_;
  db::Store& store_;
  const std::shared_ptr<ClientCall> client_;
  const v1::ReadPointsRequest request_;
  db::PointFilter filter_;
  std::vector<db::AttemptRow> attempts_;  // newest first
  bool begun_ = false;
  std::vector<db::SeriesName> names_;   // a page of the series
  size_t name_ = 0;                     // index in names_ of the next series to read
  bool last_page_ = false;              // no page follows names_
  std::optional<SeriesStream> stream_;  // the series that is being read
  std::deque<db::Series> pieces_;       // to be sent
  bool ended_ = false;                  // all points were read
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
