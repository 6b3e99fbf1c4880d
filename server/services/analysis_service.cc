#include "server/services/analysis_service.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/comparison/advise.h"
#include "analysis/comparison/compare.h"
#include "analysis/parallel.h"
#include "analysis/precision.h"
#include "server/core/convert.h"
#include "server/curves/measured_series.h"
#include "server/curves/study_curve.h"
#include "server/services/lookup.h"

namespace scalelab::server {
namespace {

constexpr int kMostStudies = 100;

struct Input {
  db::StudyRow study;
  StudyInput read;
  std::optional<double> sequential;  // as in StudyRows

  analysis::StudyRows AsRows() const {
    return {read.cells, read.parameters, *read.rows, study.name, sequential};
  }
};

absl::StatusOr<Input> ReadInput(db::Store& store, ClientCall& call, const std::string& name) {
  auto study = FindStudy(store, call, name);
  if (!study.ok()) return study.status();
  auto read = ReadStudyInput(store, *study);
  if (!read.ok()) return read.status();
  const auto sequential =
      analysis::SequentialConfidenceOf(read->spec, read->cells, read->parameters, *read->rows);
  return Input{*std::move(study), *std::move(read), sequential};
}

using Measured = google::protobuf::RepeatedPtrField<v1::MeasuredSeries>;

// Appends the series of a study with the notes of its curve.
absl::Status AddMeasured(db::Store& store, const Input& input, const std::function<bool()>& over,
                         Measured& measured) {
  v1::GetCurveResponse curve;
  if (auto s = MakeStudyCurve(store, input.study, input.read, over, &curve); !s.ok()) return s;
  AddMeasuredSeries(curve, measured);
  return absl::OkStatus();
}

absl::Status CheckShare(const char* field, double value, double most) {
  if (std::isfinite(value) && value >= 0 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; it must be from 0 to ", most));
}

// If several studies have the same display name, appends the resource name to each.
void NameApart(const std::deque<Input>& inputs, std::vector<analysis::StudyRows>& studies) {
  std::map<std::string, int> count;
  for (const Input& input : inputs) ++count[input.study.name];
  for (size_t i = 0; i < studies.size(); ++i) {
    if (count[studies[i].name] > 1)
      absl::StrAppend(&studies[i].name, " (", StudyName(inputs[i].study.id), ")");
  }
}

}  // namespace

absl::Status ComputeComparison(db::Store& store, ClientCall& call, const v1::CompareCellsRequest& request,
                               const std::function<bool()>& over, v1::CompareCellsResponse* response) {
  if (request.studies_size() == 0 || request.studies_size() > kMostStudies)
    return absl::InvalidArgumentError(
        absl::StrCat("studies has ", request.studies_size(), " names; it must have 1 to ", kMostStudies));
  if (auto s = CheckShare("equivalent", request.equivalent(), 1); !s.ok()) return s;
  if (request.axis() == "study" && request.studies_size() < 2)
    return absl::InvalidArgumentError("axis \"study\" compares several studies; name at least two");
  if (request.axis() == "ranks")
    return absl::InvalidArgumentError(
        "axis \"ranks\" cannot be compared; scalelab advise compares world sizes");
  std::deque<Input> inputs;
  std::vector<analysis::StudyRows> studies;
  for (const std::string& name : request.studies()) {
    if (over()) return absl::CancelledError("nobody waits for the comparison");
    auto input = ReadInput(store, call, name);
    if (!input.ok()) return input.status();
    // A study has several names: its number, its display name and "last".
    const int64_t id = input->study.id;
    if (std::ranges::any_of(inputs, [id](const Input& other) { return other.study.id == id; }))
      return absl::InvalidArgumentError(absl::StrCat(StudyName(id), " is named twice; name each study once"));
    studies.push_back(inputs.emplace_back(*std::move(input)).AsRows());
  }
  NameApart(inputs, studies);
  // The curves take about as long as the comparison.
  std::atomic<bool> failed = false;
  Measured measured;
  auto curves = analysis::Meanwhile([&]() -> absl::Status {
    for (const Input& input : inputs) {
      if (auto s = AddMeasured(
              store, input, [&] { return failed || over(); }, measured);
          !s.ok())
        return s;
    }
    return absl::OkStatus();
  });
  auto compared = analysis::CompareStudies(studies, request.axis(), request.equivalent(), over);
  if (!compared.ok()) {
    failed = true;
    return compared.status();
  }
  *response = *std::move(compared);
  for (const Input& input : inputs) response->add_studies(StudyName(input.study.id));
  if (auto s = curves.get(); !s.ok()) return s;
  response->mutable_measured()->Swap(&measured);
  return absl::OkStatus();
}

absl::Status ComputeAdvice(db::Store& store, ClientCall& call, const v1::AdviseRanksRequest& request,
                           const std::function<bool()>& over, v1::AdviseRanksResponse* response) {
  constexpr double kMost = 1e9;
  if (auto s = CheckShare("min_gain", request.min_gain(), 1); !s.ok()) return s;
  if (auto s = CheckShare("rank_hour_price", request.rank_hour_price(), kMost); !s.ok()) return s;
  if (auto s = CheckShare("deadline_hours", request.deadline_hours(), kMost); !s.ok()) return s;
  if (auto s = CheckShare("epochs", request.epochs(), kMost); !s.ok()) return s;
  const auto input = ReadInput(store, call, request.study());
  if (!input.ok()) return input.status();
  analysis::AdviceOptions options;
  if (request.min_gain() > 0) options.min_gain = request.min_gain();
  if (request.rank_hour_price() > 0) options.rank_hour_price = request.rank_hour_price();
  options.deadline_hours = request.deadline_hours();
  if (request.epochs() > 0) options.epochs = request.epochs();
  // The curve takes about as long as the advice.
  Measured measured;
  auto curve = analysis::Meanwhile([&] { return AddMeasured(store, *input, over, measured); });
  for (v1::Advice& advice : analysis::AdviseRanks(input->AsRows(), options))
    *response->add_advice() = std::move(advice);
  response->set_study(StudyName(input->study.id));
  response->set_display_name(input->study.name);
  if (auto s = curve.get(); !s.ok()) return s;
  response->mutable_measured()->Swap(&measured);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* AnalysisService::CompareCells(grpc::CallbackServerContext* context,
                                                        const v1::CompareCellsRequest* request,
                                                        v1::CompareCellsResponse* response) {
  return AnswerOn(handler_.pools.heavy, handler_, context, response, [this, request = *request](auto& call) {
    return ComputeComparison(
        handler_.store, call.client(), request, [&call] { return call.over(); }, &call.response);
  });
}

grpc::ServerUnaryReactor* AnalysisService::AdviseRanks(grpc::CallbackServerContext* context,
                                                       const v1::AdviseRanksRequest* request,
                                                       v1::AdviseRanksResponse* response) {
  return AnswerOn(handler_.pools.heavy, handler_, context, response, [this, request = *request](auto& call) {
    return ComputeAdvice(
        handler_.store, call.client(), request, [&call] { return call.over(); }, &call.response);
  });
}

}  // namespace scalelab::server
