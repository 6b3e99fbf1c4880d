// `scalelab study submit FILE`: checks the file locally, so that errors have positions, then
// queues the study.
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/sections.h"
#include "client/session/agent_start.h"
#include "client/session/exit_code.h"
#include "client/session/progress.h"
#include "client/session/server_options.h"
#include "client/session/watcher.h"
#include "proto/uuid.h"
#include "study/file/study_file.h"

namespace scalelab::client {
namespace {

using scalelab::v1::AgentService;
using scalelab::v1::CreateStudyRequest;
using scalelab::v1::StudyService;

// The server does not store the text of a longer file. Such a text is not sent, because the specification
// alone may be almost as long as a request may be.
constexpr size_t kLongestStudyFile = 256 << 10;

struct StudySubmitOptions {
  std::string file;
  std::vector<std::string> set;
  std::string request_id;
  std::string owner;  // empty: the caller
  bool watch = false;
};

// Starts the user's agent if the service needs an agent and none is connected. An error only causes a
// message, because the study waits until an agent connects.
void StartAgentIfNeeded(Session& session, Connection& server) {
  const auto agent =
      server.Call(server.agents(), &AgentService::Stub::GetAgent, scalelab::v1::GetAgentRequest());
  // The call fails if the caller has no account on the server's machine, or if the server is older
  // than this method.
  if (!agent.ok() || !agent->needed() || agent->connected()) return;
  if (const absl::Status started = StartAgent(server.options()); !started.ok()) {
    session.Say(absl::StrCat("the study waits for your agent, which could not be started (",
                             started.message(), "); start it with `scalelab agent --detach`"));
    return;
  }
  session.Say("your agent has been started in the background: it runs the jobs of your studies");
}

absl::StatusOr<ExitCode> ExecuteStudySubmit(const StudySubmitOptions& options, Session& session) {
  const auto defaults = StudyDefaults();
  if (!defaults.ok()) return defaults.status();
  const auto checked = CheckStudyFile(options.file, options.set, *defaults);
  if (!checked.ok()) return AsInvalidInput(checked.status());
  CreateStudyRequest request;
  *request.mutable_spec() = checked->file.spec;
  // A random id makes retries of this client idempotent, even if the user has given no id.
  request.set_request_id(options.request_id.empty() ? RandomUuid() : options.request_id);
  request.set_owner(options.owner);
  // With --set, the text does not give the specification.
  if (options.set.empty() && checked->file.text.size() <= kLongestStudyFile)
    request.set_study_file(checked->file.text);
  auto server = session.Server(kFrameworksLimit);
  if (!server.ok()) return server.status();
  const auto response = (*server)->Call((*server)->studies(), &StudyService::Stub::CreateStudy, request);
  if (!response.ok()) return AsInvalidInput(Locate(checked->file, response.status()));

  StartAgentIfNeeded(session, **server);

  const auto& study = response->study();
  Section name;
  name.columns = {{"name"}};
  name.header = false;
  name.rows = [&study](const RowSink& sink) { sink({study.name()}); };
  if (const absl::Status status = session.Print({*response, {std::move(name)}}); !status.ok()) return status;
  if (options.watch) return WatchStudy(session, study.name(), session.io().err, session.io().err_terminal);
  const int64_t runs = TotalRuns(study.counts());
  session.Say(absl::StrCat(runs, runs == 1 ? " run" : " runs", " queued; `scalelab study watch ",
                           study.name(), "` follows them"));
  return ExitCode::kOk;
}

}  // namespace

void AddStudySubmit(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudySubmitOptions>();
  CLI::App* command = study.add_subcommand("submit", "Queue a study and print its name");
  command->add_option("FILE", options->file, "The study file; - reads standard input")->required();
  command
      ->add_option("--set", options->set,
                   "Replaces a value of the file, for example --set matrix.ranks=[1,2]; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--request-id", options->request_id,
                      "Makes repeating this command safe: the same id never makes a second study");
  command->add_option("--owner", options->owner, "Owner of the study, if not you; for admins");
  command->add_flag("--watch", options->watch,
                    "Follow the study until it is over or paused (see `study watch`)");
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudySubmit(*options, session); };
  });
}

}  // namespace scalelab::client
