// `scalelab predictions [STUDY]`: lists predictions, their errors and their coverage.
#include "client/commands/predict/predict.h"
#include "client/commands/predict/prediction_table.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ListPredictionsRequest;
using scalelab::v1::ListPredictionsResponse;
using scalelab::v1::PredictionService;

constexpr int kPage = 1000;

absl::StatusOr<ExitCode> ExecutePredictions(const std::string& study, Session& session) {
  ListPredictionsRequest request;
  request.set_page_size(kPage);
  if (!study.empty()) {
    auto name = StudyName(study);
    if (!name.ok()) return name.status();
    request.set_study(*std::move(name));
  }
  auto server = session.Server();
  if (!server.ok()) return server.status();
  ListPredictionsResponse all;
  do {
    auto page = (*server)->Call((*server)->predictions(), &PredictionService::Stub::ListPredictions, request);
    if (!page.ok()) return page.status();
    request.set_page_token(page->next_page_token());
    page->clear_next_page_token();
    all.MergeFrom(*page);
  } while (!request.page_token().empty());
  const Answer answer{all,
                      {PredictionTable(all.predictions()), PredictionReasons(all.predictions()),
                       PredictionFacts(all.summary())}};
  if (const absl::Status s = session.Print(answer); !s.ok()) return s;
  return ExitCode::kOk;
}

}  // namespace

void AddPredictions(CLI::App& app, Action& chosen) {
  auto study = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("predictions", "List predictions with their errors, and how many were right");
  command->add_option("STUDY", *study, "Only of this study: number, name, or last");
  command->callback([study, &chosen] {
    chosen = [study](Session& session) { return ExecutePredictions(*study, session); };
  });
}

}  // namespace scalelab::client
