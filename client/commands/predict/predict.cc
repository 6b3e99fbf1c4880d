// `scalelab predict STUDY`: predicts larger world sizes and stores the predictions.
#include "client/commands/predict/predict.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/commands/predict/network_file.h"
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
  std::string network, contender = "mpi_started";
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
  if (options.network.empty()) return request;
  const auto measured = ReadAllReduces(options.network, options.contender);
  if (!measured.ok()) return measured.status();
  request.mutable_all_reduces()->Assign(measured->begin(), measured->end());
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
  Section table = PredictionTable(made->predictions());
  table.empty =
      "nothing to predict: no cell without runs has more ranks than those with results; `--ranks 4,8 "
      "--dry-run` "
      "predicts world sizes that no study has";
  const Answer answer{*made, {std::move(table), PredictionReasons(made->predictions())}};
  if (const absl::Status s = session.Print(answer); !s.ok()) return s;
  const bool any = std::any_of(made->predictions().begin(), made->predictions().end(),
                               [](const Prediction& p) { return p.state() != Prediction::REFUSED; });
  return any ? ExitCode::kOk : ExitCode::kFailure;
}

}  // namespace

void AddPredict(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "predict", "Predict larger numbers of ranks, and store the predictions before these run");
  command->add_option("STUDY", options->study, "The study with results: number, name, or last")->required();
  command->add_option("--for", options->target,
                      "The study whose cells are predicted: number, name, or last; STUDY if not given");
  command
      ->add_option("--ranks", options->ranks,
                   "World sizes, for example 16,32; all larger than the measured ones if not given")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command->add_flag("--dry-run", options->dry_run,
                    "Store nothing; world sizes that no study has can be predicted, too");
  auto* network = command->add_option(
      "--network", options->network,
      "Output of `scalelab-bench allreduce` on the network that the predicted ranks use; without it, "
      "the all-reduces that the runs recorded");
  command
      ->add_option("--all-reduce", options->contender,
                   "Which all-reduces of --network: mpi_started, mpi, gloo, ...")
      ->capture_default_str()
      ->needs(network);
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecutePredict(*options, session); };
  });
}

}  // namespace scalelab::client
