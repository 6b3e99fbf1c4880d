// `scalelab predict STUDY`: predicts larger world sizes and stores the predictions.
#include "client/commands/predict/predict.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/commands/predict/prediction_table.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::CreatePredictionsRequest;
using scalelab::v1::Prediction;
using scalelab::v1::PredictionService;

struct Options {
  std::string study;
  std::string target;
  std::vector<int> ranks;
  bool dry_run = false;
};

absl::StatusOr<CreatePredictionsRequest> RequestOf(const Options& options) {
  CreatePredictionsRequest request;
  auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  request.set_study(*std::move(name));
  if (!options.target.empty()) {
    auto target = StudyName(options.target);
    if (!target.ok()) return target.status();
    request.set_target_study(*std::move(target));
  }
  request.mutable_ranks()->Assign(options.ranks.begin(), options.ranks.end());
  request.set_validate_only(options.dry_run);
  return request;
}

absl::StatusOr<ExitCode> ExecutePredict(const Options& options, Session& session) {
  const auto request = RequestOf(options);
  if (!request.ok()) return request.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  const auto made =
      (*server)->Call((*server)->predictions(), &PredictionService::Stub::CreatePredictions, *request);
  if (!made.ok()) return made.status();
  if (const absl::Status s = session.Print({*made, {PredictionTable(made->predictions())}}); !s.ok())
    return s;
  const bool any = std::any_of(made->predictions().begin(), made->predictions().end(),
                               [](const Prediction& p) { return p.state() != Prediction::REFUSED; });
  return any ? ExitCode::kOk : ExitCode::kFailure;
}

}  // namespace

void AddPredict(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("predict", "Predict larger numbers of ranks, and store that before they run");
  command->add_option("STUDY", options->study, "The study with results: number, name, or last")->required();
  command->add_option("--for", options->target,
                      "The study whose cells are predicted: number, name, or last; STUDY if not given");
  command
      ->add_option("--ranks", options->ranks,
                   "World sizes, for example 16,32; all larger than the measured ones if not given")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command->add_flag("--dry-run", options->dry_run,
                    "Store nothing; predicts world sizes that no study has too");
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecutePredict(*options, session); };
  });
}

}  // namespace scalelab::client
