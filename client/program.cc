#include "client/program.h"

#include <algorithm>
#include <map>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catalog/nearest.h"
#include "client/commands/admin/admin.h"
#include "client/commands/archive/archive.h"
#include "client/commands/bundle/bundle.h"
#include "client/commands/commands.h"
#include "client/commands/init/init.h"
#include "client/commands/predict/predict.h"
#include "client/commands/reports/reports.h"
#include "client/export/export.h"
#include "client/output/json_printer.h"
#include "google/protobuf/struct.pb.h"
#include "proto/status.h"
#include "study/file/study_file.h"

namespace scalelab::client {
namespace {

constexpr char kFooter[] =
    "Global options (-o, --server, --token-file, --timeout, -q, --no-color: see `scalelab --help`) are "
    "accepted anywhere.\n"
    "Exit codes: 0 ok, 1 failure, 2 usage or invalid file, 4 not allowed, 5 some runs did not succeed,\n"
    "6 no server answers, 8 timeout, 130 interrupted (Ctrl-C), 143 ended by SIGTERM.";

// Parses "60s", "1m30s", "500ms" or a number of seconds. Returns false unless the result is positive.
bool ParseSpan(const std::string& text, absl::Duration* span) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    *span = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, span)) {
    return false;
  }
  return *span > absl::ZeroDuration();
}

void AddGlobalOptions(CLI::App& app, GlobalOptions& options) {
  static const std::map<std::string, OutputFormat> kFormats = {{"table", OutputFormat::kTable},
                                                               {"wide", OutputFormat::kWide},
                                                               {"json", OutputFormat::kJson},
                                                               {"csv", OutputFormat::kCsv}};
  app.add_option_function<std::string>(
         "-o,--output", [&options](const std::string& name) { options.output = kFormats.at(name); },
         "table, wide, json or csv")
      ->check(CLI::IsMember({"table", "wide", "json", "csv"}));
  app.add_option("--server", options.server,
                 "unix:PATH, HOST:PORT or insecure:HOST:PORT; else SCALELAB_SERVER, else `server:` in "
                 "~/.config/scalelab/config");
  app.add_option("--token-file", options.token_file,
                 "Token for a server on HOST:PORT; else SCALELAB_TOKEN_FILE");
  app.add_option_function<std::string>(
      "--timeout",
      [&options](const std::string& text) {
        absl::Duration span;
        if (!ParseSpan(text, &span))
          throw CLI::ValidationError("--timeout", "invalid time '" + text + "'; write for example 60s or 5m");
        options.timeout = span;
      },
      "Time limit of each call (60s; 5m if it asks for frameworks); for `wait` and `watch`, of the whole "
      "command (no limit)");
  app.add_flag("-q,--quiet", options.quiet, "Print data and errors only");
  app.add_flag("--no-color", options.no_color, "Print without colours (as does NO_COLOR)");
}

// Returns whether the word is an option of the program whose value is the next word.
bool TakesNextWord(const CLI::App& app, const std::string& word) {
  if (!absl::StartsWith(word, "-") || absl::StrContains(word, '=')) return false;
  const CLI::Option* option = app.get_option_no_throw(word);
  return option != nullptr && option->get_expected_max() > 0 && option->get_items_expected_max() > 0;
}

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Returns the commands of this name in groups, for example "study list" for "list".
std::vector<std::string> FindInGroups(const CLI::App& app, const std::string& word) {
  std::vector<std::string> found;
  for (const CLI::App* group : CommandsOf(app)) {
    for (const CLI::App* command : CommandsOf(*group)) {
      if (command->get_name() == word) found.push_back(absl::StrCat("'", group->get_name(), " ", word, "'"));
    }
  }
  return found;
}

// Returns a suggestion for the first unknown command in `arguments`, or "" if no known name is similar. If
// `missing` is set, the command line lacks a subcommand, and the function returns the list of known
// subcommands instead. Sets `path` to the command that the arguments name.
std::string Suggestion(const CLI::App& app, const std::vector<std::string>& arguments, bool missing,
                       std::string& path) {
  const CLI::App* at = &app;
  path = app.get_name();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word.empty() || word[0] == '-') {
      if (TakesNextWord(app, word)) ++i;
      continue;
    }
    const auto subcommands = CommandsOf(*at);
    const auto it =
        std::find_if(subcommands.begin(), subcommands.end(), [&](auto* s) { return s->get_name() == word; });
    if (it != subcommands.end()) {
      at = *it;
      absl::StrAppend(&path, " ", word);
      continue;
    }
    if (const auto found = FindInGroups(*at, word); !found.empty())
      return absl::StrCat("unknown command '", word, "'; did you mean ", absl::StrJoin(found, " or "), "?");
    std::vector<absl::string_view> names;
    for (const CLI::App* sub : subcommands) names.push_back(sub->get_name());
    const std::string nearest = Nearest(word, names);
    if (!nearest.empty()) return absl::StrCat("unknown command '", word, "'; did you mean '", nearest, "'?");
    if (!missing || names.empty()) return "";
    return absl::StrCat("unknown command '", word, "'; known: ", absl::StrJoin(names, ", "));
  }
  if (!missing || CommandsOf(*at).empty()) return "";
  return absl::StrCat("`", path, "` needs a command: ",
                      absl::StrJoin(CommandsOf(*at), ", ", [](std::string* out, const CLI::App* command) {
                        out->append(command->get_name());
                      }));
}

// Returns an error as a message: {"error": {"code", "message", "reason", "exit_code", "violations"}}.
google::protobuf::Struct ErrorMessage(const absl::Status& status) {
  google::protobuf::Struct message;
  auto& error = *(*message.mutable_fields())["error"].mutable_struct_value()->mutable_fields();
  error["code"].set_string_value(absl::StatusCodeToString(status.code()));
  error["message"].set_string_value(std::string(status.message()));
  error["exit_code"].set_number_value(static_cast<double>(ExitCodeOf(status)));
  if (const std::string reason = ReasonOf(status); !reason.empty()) error["reason"].set_string_value(reason);
  for (const FieldViolation& violation : ViolationsOf(status)) {
    auto& fields =
        *error["violations"].mutable_list_value()->add_values()->mutable_struct_value()->mutable_fields();
    fields["field"].set_string_value(violation.field);
    fields["description"].set_string_value(violation.description);
  }
  return message;
}

// Returns whether the arguments, which may be wrong, ask for JSON.
bool AskForJson(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "-ojson" || word == "--output=json" || word == "-o=json") return true;
    if ((word == "-o" || word == "--output") && i + 1 < arguments.size() && arguments[i + 1] == "json")
      return true;
  }
  return false;
}

constexpr char kDescription[] = "scalelab: distributed-training scaling experiments as a shared service";

void Define(CLI::App& app, GlobalOptions& options, Action& chosen) {
  app.fallthrough();  // allows global options after the command
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("scalelab ") + SCALELAB_VERSION);
  app.footer(kFooter);
  AddGlobalOptions(app, options);

  CLI::App* study =
      app.add_subcommand("study", "Submit, follow, hold, cancel and retry studies")->require_subcommand(1);
  AddStudyInit(*study, chosen);
  AddStudyKeys(*study, chosen);
  AddStudyValidate(*study, chosen);
  AddStudyPlan(*study, chosen);
  AddStudySubmit(*study, chosen);
  AddStudyList(*study, chosen);
  AddStudyShow(*study, chosen);
  AddStudyExplain(*study, chosen);
  AddStudyWatch(*study, chosen);
  AddStudyWait(*study, chosen);
  AddStudyCancel(*study, chosen);
  AddStudyRetry(*study, chosen);
  AddStudyResume(*study, chosen);
  AddStudyHold(*study, chosen);
  AddStudyRelease(*study, chosen);
  AddStudyPriority(*study, chosen);
  AddStudyDelete(*study, chosen);
  AddStudyGet(*study, chosen);
  AddStudyExport(*study, chosen);
  AddStudyReport(*study, chosen);
  AddStudyCompare(*study, chosen);
  AddStudyArchive(*study, chosen);
  AddStudyRestore(*study, chosen);
  AddStudyBundle(*study, chosen);
  AddStudyImport(*study, chosen);
  CLI::App* run = app.add_subcommand("run", "Show, cancel and retry single runs")->require_subcommand(1);
  AddRunList(*run, chosen);
  AddRunShow(*run, chosen);
  AddRunExplain(*run, chosen);
  AddRunLogs(*run, chosen);
  AddRunMetrics(*run, chosen);
  AddRunCancel(*run, chosen);
  AddRunRetry(*run, chosen);
  AddCurve(app, chosen);
  AddPlot(app, chosen);
  AddAdvise(app, chosen);
  AddPredict(app, chosen);
  AddPredictions(app, chosen);
  AddCluster(app, chosen);
  AddQueue(app, chosen);
  CLI::App* admin =
      app.add_subcommand("admin", "Run the service: usage, audit log, drain")->require_subcommand(1);
  AddAdminUsage(*admin, chosen);
  AddAdminAudit(*admin, chosen);
  AddAdminPrune(*admin, chosen);
  AddAdminDrain(*admin, chosen);
  CLI::App* data = app.add_subcommand("data", "Check and index data sets")->require_subcommand(1);
  AddDataVerify(*data, chosen);
  AddDataIndex(*data, chosen);
  AddWhoami(app, chosen);
  CLI::App* token =
      app.add_subcommand("token", "Create, list and revoke personal tokens")->require_subcommand(1);
  AddTokenCreate(*token, chosen);
  AddTokenList(*token, chosen);
  AddTokenRevoke(*token, chosen);
  AddAgent(app, chosen);
  AddLogin(app, chosen);
  AddVerify(app, chosen);
  AddWeb(app, chosen);
  AddVersion(app, chosen);
  AddCompletion(app, chosen);
}

}  // namespace

void VisitCommandLine(const std::function<void(const CLI::App&)>& visit) {
  GlobalOptions options;
  Action chosen;
  CLI::App app(kDescription, "scalelab");
  Define(app, options, chosen);
  visit(app);
}

int RunProgram(const std::vector<std::string>& arguments, Io io) {
  GlobalOptions options;
  Action chosen;
  CLI::App app(kDescription, "scalelab");
  Define(app, options, chosen);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // in CLI11's order
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    const bool asked =
        error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);  // --help, --version
    const bool missing = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError);
    std::string path;
    const std::string suggestion = asked ? "" : Suggestion(app, arguments, missing, path);
    const std::string words = suggestion.empty() ? error.what() : suggestion;
    if (asked) {
      app.exit(error, io.out, io.err);
      if (const absl::Status written = Flush(io.out); !written.ok()) {
        io.err << "scalelab: " << written.message() << std::endl;
        return static_cast<int>(ExitCode::kFailure);
      }
    } else if (AskForJson(arguments)) {
      io.err << ToJson(ErrorMessage(absl::InvalidArgumentError(words)), true) << std::flush;
    } else {
      io.err << "scalelab: " << words;
      if (suggestion.empty()) io.err << "; `" << path << " --help` shows the usage";
      io.err << std::endl;
    }
    return static_cast<int>(asked ? ExitCode::kOk : ExitCode::kUsage);
  }
  if (options.no_color) io.out_terminal.color = io.err_terminal.color = false;

  Session session(options, io);
  const auto outcome = chosen(session);
  if (outcome.ok()) return static_cast<int>(*outcome);
  io.out.flush();
  if (options.output == OutputFormat::kJson) {
    io.err << ToJson(ErrorMessage(outcome.status()), true) << std::flush;
    return static_cast<int>(ExitCodeOf(outcome.status()));
  }
  // Errors about a file start with its path, as compilers print them; all other errors get the program's
  // name as prefix.
  io.err << (IsLocated(outcome.status()) ? "" : "scalelab: ") << outcome.status().message() << std::endl;
  return static_cast<int>(ExitCodeOf(outcome.status()));
}

}  // namespace scalelab::client
