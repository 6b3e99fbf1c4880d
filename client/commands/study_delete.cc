// `scalelab study delete STUDIES`: deletes finished studies.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/commands/commands.h"
#include "client/commands/each.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::DeleteStudyRequest;
using scalelab::v1::GetRunRequest;
using scalelab::v1::ListRunsRequest;
using scalelab::v1::RunService;
using scalelab::v1::StudyService;

struct StudyDeleteOptions {
  std::string studies;
  bool yes = false;
};

// Asks the user for confirmation, because a deletion cannot be undone. A script is not asked: it may delete one study,
// which it names, but several only with --yes, because a selector such as "all" may select more than intended.
absl::Status Confirm(const StudyDeleteOptions& options, const std::vector<scalelab::v1::Study>& studies,
                     Session& session) {
  if (options.yes || studies.empty()) return absl::OkStatus();
  const bool one = studies.size() == 1;
  const std::string question =
      one ? absl::StrCat("delete ", studies[0].name(), " ", studies[0].display_name(),
                         " with its runs and points")
          : absl::StrCat("delete ", studies.size(), " studies with their runs and points");
  if (!session.io().err_terminal.tty || !session.io().in_tty) {
    if (one) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("this would ", question, "; add --yes to do it"));
  }
  if (session.Confirms(absl::StrCat(question, "? yes or no: "))) return absl::OkStatus();
  return absl::CancelledError("nothing was deleted");
}

// Returns the directory on the server that has the files of the study's attempts; "" if there is none or it
// is not known.
std::string DirectoryOf(Connection& server, const std::string& study) {
  ListRunsRequest list;
  list.set_parent(study);
  list.set_page_size(100);
  list.set_view(ListRunsRequest::BRIEF);
  const auto runs = server.Call(server.runs(), &RunService::Stub::ListRuns, list);
  if (!runs.ok()) return "";
  for (const auto& listed : runs->runs()) {
    if (!listed.has_start_time()) continue;
    GetRunRequest get;
    get.set_name(listed.name());
    const auto run = server.Call(server.runs(), &RunService::Stub::GetRun, get);
    if (!run.ok() || run->run().attempts().empty()) return "";
    // RUNS/STUDY/RUN/TOKEN
    const std::string& attempt = run->run().attempts(0).directory();
    const std::string::size_type token = attempt.rfind('/');
    const std::string::size_type last =
        token == std::string::npos || token == 0 ? token : attempt.rfind('/', token - 1);
    if (last == std::string::npos) return "";
    const std::string directory = attempt.substr(0, last);
    // Commands for users must not name anything else.
    const std::string number = study.substr(study.rfind('/') + 1);
    return absl::EndsWith(directory, absl::StrCat("/", number)) ? directory : "";
  }
  return "";
}

// Returns the text as a word of a shell command.
std::string ShellWord(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("/._-+@:", c);
  });
  return plain ? text : absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string DeletedText(const std::string& study, const std::string& directory) {
  if (directory.empty()) return absl::StrCat("deleted ", study);
  return absl::StrCat("deleted ", study, "; its files stay in ", directory,
                      " on the server: remove them with `rm -r ", ShellWord(directory),
                      "`, or with the retention rule attempt_directories");
}

absl::StatusOr<ExitCode> ExecuteStudyDelete(const StudyDeleteOptions& options, Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  // Resolve names first. The server refuses to delete "last", because a repeated call would
  // delete another study.
  const auto studies = FindStudies(**server, options.studies);
  if (!studies.ok()) return studies.status();
  if (const absl::Status status = Confirm(options, *studies, session); !status.ok()) return status;
  std::vector<std::string> names;
  for (const auto& study : *studies) names.push_back(study.name());
  return ForEach(session, names, [&](const std::string& name) {
    const std::string directory = DirectoryOf(**server, name);
    DeleteStudyRequest request;
    request.set_name(name);
    const auto response = (*server)->Call((*server)->studies(), &StudyService::Stub::DeleteStudy, request);
    if (response.ok()) session.Say(DeletedText(name, directory));
    return response.status();
  });
}

}  // namespace

void AddStudyDelete(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyDeleteOptions>();
  CLI::App* command = study.add_subcommand("delete", "Delete finished studies with their runs and points");
  command->add_option("STUDIES", options->studies, "Number, name, last, 1-3,5, or all")->required();
  command->add_flag("-y,--yes", options->yes, "Delete without a question");
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyDelete(*options, session); };
  });
}

}  // namespace scalelab::client
