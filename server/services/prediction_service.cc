#include "server/services/prediction_service.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "db/predictions/predictions.h"
#include "proto/status.h"
#include "server/identity/permissions.h"
#include "server/prediction/ledger.h"
#include "server/services/lookup.h"

namespace scalelab::server {
namespace {

constexpr int kMostSizes = 100, kMostAllReduces = 10'000;
constexpr int kDefaultPage = 100, kMostOnPage = 1000;

absl::Status CheckRanks(const v1::CreatePredictionsRequest& request) {
  if (request.ranks_size() > kMostSizes)
    return InvalidFields({{"ranks", absl::StrCat("ranks has ", request.ranks_size(), " values; at most ",
                                                 kMostSizes, " are allowed")}});
  for (const int ranks : request.ranks()) {
    if (ranks < 1)
      return InvalidFields(
          {{"ranks", absl::StrCat("ranks has the value ", ranks, "; it must be at least 1")}});
  }
  return absl::OkStatus();
}

// Returns the costs of the network, fitted to the all-reduces in the request; nothing if there are none.
absl::StatusOr<std::optional<RingCost>> NetworkOf(const v1::CreatePredictionsRequest& request) {
  if (request.all_reduces_size() > kMostAllReduces)
    return InvalidFields(
        {{"all_reduces", absl::StrCat("all_reduces has ", request.all_reduces_size(), " values; at most ",
                                      kMostAllReduces, " are allowed")}});
  std::vector<AllReduceTime> times;
  for (const v1::MeasuredAllReduce& measured : request.all_reduces()) {
    const bool possible = measured.ranks() >= 2 && measured.bytes() > 0 && std::isfinite(measured.bytes()) &&
                          measured.seconds() > 0 && std::isfinite(measured.seconds());
    if (!possible)
      return InvalidFields(
          {{"all_reduces", absl::StrCat("all_reduces has one of ", measured.ranks(), " ranks, ",
                                        measured.bytes(), " bytes and ", measured.seconds(),
                                        " s; each needs at least 2 ranks, "
                                        "and bytes and seconds above 0")}});
    times.push_back({measured.ranks(), measured.bytes(), measured.seconds()});
  }
  return times.empty() ? std::nullopt : std::optional(FitRing(times));
}

absl::Status Create(db::Store& store, ClientCall& call, const v1::CreatePredictionsRequest& request,
                    v1::CreatePredictionsResponse* response) {
  if (auto s = CheckRanks(request); !s.ok()) return s;
  const auto network = NetworkOf(request);
  if (!network.ok()) return network.status();
  // Stored predictions belong to the study of the predicted cells, and are final.
  const bool of_other = !request.target_study().empty();
  const auto find_target = request.validate_only() ? FindStudy : FindStudyToControl;
  auto source_row = (of_other ? FindStudy : find_target)(store, call, request.study());
  if (!source_row.ok()) return source_row.status();
  const auto source = ReadStudyData(store, *std::move(source_row));
  if (!source.ok()) return source.status();
  std::optional<StudyData> other;
  if (of_other) {
    auto target_row = find_target(store, call, request.target_study());
    if (!target_row.ok()) return target_row.status();
    auto target = ReadStudyData(store, *std::move(target_row));
    if (!target.ok()) return target.status();
    other = *std::move(target);
  }
  auto predictions = MakePredictions(store, *source, other.has_value() ? *other : *source,
                                     {request.ranks().begin(), request.ranks().end()},
                                     request.validate_only(), absl::ToUnixMicros(absl::Now()), *network);
  if (!predictions.ok()) return predictions.status();
  for (v1::Prediction& prediction : *predictions) *response->add_predictions() = std::move(prediction);
  return absl::OkStatus();
}

absl::Status List(db::Store& store, ClientCall& call, const v1::ListPredictionsRequest& request,
                  v1::ListPredictionsResponse* response) {
  int64_t before = 0;
  if (!request.page_token().empty() && !absl::SimpleAtoi(request.page_token(), &before))
    return InvalidFields({{"page_token", "page_token is no next_page_token of ListPredictions"}});
  db::PredictionFilter filter;
  filter.viewer = ViewerOf(call.caller());
  if (!request.study().empty()) {
    const auto study = FindStudy(store, call, request.study());
    if (!study.ok()) return study.status();
    filter.study_id = study->id;
  }
  const int size = request.page_size() <= 0 ? kDefaultPage : std::min(request.page_size(), kMostOnPage);
  const auto rows = db::ListPredictions(store, filter, before, size);
  if (!rows.ok()) return rows.status();
  for (const db::PredictionRow& row : *rows) *response->add_predictions() = ToPrediction(row);
  if (static_cast<int>(rows->size()) == size) response->set_next_page_token(absl::StrCat(rows->back().id));
  const auto scores = db::ReadPredictionScores(store, filter);
  if (!scores.ok()) return scores.status();
  *response->mutable_summary() = Summarise(*scores);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* PredictionService::CreatePredictions(grpc::CallbackServerContext* context,
                                                               const v1::CreatePredictionsRequest* request,
                                                               v1::CreatePredictionsResponse* response) {
  return AnswerOn(handler_.pools.heavy, handler_, context, response, [this, request = *request](auto& call) {
    return Create(handler_.store, call.client(), request, &call.response);
  });
}

grpc::ServerUnaryReactor* PredictionService::ListPredictions(grpc::CallbackServerContext* context,
                                                             const v1::ListPredictionsRequest* request,
                                                             v1::ListPredictionsResponse* response) {
  return AnswerOn(handler_.pools.reads, handler_, context, response, [this, request = *request](auto& call) {
    return List(handler_.store, call.client(), request, &call.response);
  });
}

}  // namespace scalelab::server
