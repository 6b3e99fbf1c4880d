// `scalelab advise STUDY`: shows which world size is worth its price.
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "client/commands/analysis_tables.h"
#include "client/commands/commands.h"
#include "client/plots/curve_view.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::AdviseRanksRequest;
using scalelab::v1::AnalysisService;
using scalelab::v1::StudySpec;

constexpr const char* kGpuHour = "/gpu-hour";

struct AdviseOptions {
  std::string study;
  std::string min_gain = "50%";
  std::string price;
  std::string deadline;
  double epochs = 0;
};

absl::StatusOr<double> PriceOf(absl::string_view text) {
  absl::string_view number = text;
  for (const absl::string_view unit : {kGpuHour, "/rank-hour", "/hour", "/h"}) {
    if (absl::ConsumeSuffix(&number, unit)) break;
  }
  double price = 0;
  if (absl::SimpleAtod(number, &price) && std::isfinite(price) && price > 0) return price;
  return absl::InvalidArgumentError(
      absl::StrCat("--price ", text, " is not a price; for example --price 2.5/gpu-hour"));
}

absl::StatusOr<AdviseRanksRequest> RequestOf(const AdviseOptions& options) {
  AdviseRanksRequest request;
  const auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  request.set_study(*name);
  const auto gain = ShareOf("--min-gain", options.min_gain);
  if (!gain.ok()) return gain.status();
  request.set_min_gain(*gain);
  if (!options.price.empty()) {
    const auto price = PriceOf(options.price);
    if (!price.ok()) return price.status();
    request.set_rank_hour_price(*price);
  }
  if (!options.deadline.empty()) {
    absl::Duration deadline;
    if (!absl::ParseDuration(options.deadline, &deadline) || deadline <= absl::ZeroDuration() ||
        deadline == absl::InfiniteDuration())
      return absl::InvalidArgumentError(absl::StrCat("--deadline ", options.deadline,
                                                     " is not a time; for example --deadline 12h or 1h30m"));
    request.set_deadline_hours(absl::ToDoubleHours(deadline));
  }
  request.set_epochs(options.epochs);
  return request;
}

// Returns the numbers of GPUs that ranks of the study have.
std::set<int> GpusPerRank(const StudySpec& spec) {
  constexpr char kKey[] = "gpus_per_rank";
  std::set<int> gpus;
  const auto add = [&](const scalelab::v1::Axis& axis) {
    if (axis.key() != kKey) return;
    for (const google::protobuf::Value& value : axis.values())
      gpus.insert(static_cast<int>(value.number_value()));
  };
  for (const scalelab::v1::Axis& axis : spec.matrix()) add(axis);
  for (const scalelab::v1::ZipGroup& group : spec.zip()) {
    for (const scalelab::v1::Axis& axis : group.axes()) add(axis);
  }
  const auto fixed = spec.fixed().fields().find(kKey);
  if (fixed != spec.fixed().fields().end()) gpus.insert(static_cast<int>(fixed->second.number_value()));
  if (gpus.empty()) gpus.insert(spec.resources().gpus_per_rank());
  return gpus;
}

// Multiplies the price, which is that of an hour of one GPU, by the GPUs of a rank of the study.
absl::Status MultiplyByGpus(Connection& server, AdviseRanksRequest& request) {
  scalelab::v1::GetStudyRequest of_study;
  of_study.set_name(request.study());
  const auto study = server.Call(server.studies(), &scalelab::v1::StudyService::Stub::GetStudy, of_study);
  if (!study.ok()) return study.status();
  const std::set<int> gpus = GpusPerRank(study->study().spec());
  if (gpus.size() > 1)
    return absl::InvalidArgumentError(
        absl::StrCat("--price: the ranks of this study have different numbers of GPUs (gpus_per_rank: ",
                     absl::StrJoin(gpus, ", "), "); use /rank-hour"));
  if (*gpus.begin() == 0)
    return absl::InvalidArgumentError(
        "--price: the ranks of this study have no GPUs (gpus_per_rank: 0); use /rank-hour");
  request.set_study(study->study().name());  // "last" may mean another study in the next call
  request.set_rank_hour_price(request.rank_hour_price() * *gpus.begin());
  return absl::OkStatus();
}

absl::StatusOr<ExitCode> ExecuteAdvise(const AdviseOptions& options, Session& session) {
  auto request = RequestOf(options);
  if (!request.ok()) return request.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  if (absl::EndsWith(options.price, kGpuHour)) {
    if (const absl::Status s = MultiplyByGpus(**server, *request); !s.ok()) return s;
  }
  const auto advice = (*server)->Call((*server)->analysis(), &AnalysisService::Stub::AdviseRanks, *request);
  if (!advice.ok()) return advice.status();
  const auto curves = NotedCurves(advice->measured());
  const std::vector<std::string> notes =
      curves.empty() ? std::vector<std::string>() : CurveNotes(curves.front());
  if (const absl::Status s = session.Print({*advice, {AdviceTable(*advice), AdviceText(*advice, notes)}});
      !s.ok())
    return s;
  return ExitCode::kOk;
}

}  // namespace

void AddAdvise(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<AdviseOptions>();
  CLI::App* command = app.add_subcommand("advise", "Advise which number of ranks of a study pays");
  command->add_option("STUDY", options->study, "Number, name, or last")->required();
  command
      ->add_option("--min-gain", options->min_gain,
                   "Least gain of throughput by a doubling of the ranks that pays")
      ->capture_default_str();
  command->add_option("--price", options->price,
                      "Price of an hour of one GPU or one rank, for example 2.5/gpu-hour or 10/rank-hour");
  command->add_option("--deadline", options->deadline,
                      "Longest time of the training of --epochs epochs, for example 12h");
  command->add_option("--epochs", options->epochs, "Epochs of the training; 1 if not given")
      ->check(CLI::PositiveNumber);
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteAdvise(*options, session); };
  });
}

}  // namespace scalelab::client
