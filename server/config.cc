#include "server/config.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "catalog/nearest.h"
#include "server/config_keys.h"
#include "server/rpc/socket.h"
#include "yaml-cpp/yaml.h"

namespace scalelab::server {
namespace {

// Returns "; did you mean data?" for a similar name, else nothing.
std::string Suggestion(const std::string& word, const std::string& prefix, bool keys) {
  std::vector<std::string> names;
  for (const Setting& setting : Settings()) names.push_back(keys ? KeyOf(setting) : setting.name);
  for (const Structure& structure : Structures()) {
    if (keys) names.emplace_back(structure.key);
  }
  if (!keys) names.insert(names.end(), {"config", "check-config", "version", "help", "job", "as", "output"});
  std::string nearest = Nearest(word, {names.begin(), names.end()});
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", prefix, nearest, "?");
}

absl::Status Prefixed(const std::string& prefix, const absl::Status& status) {
  return Invalid(absl::StrCat(prefix, ": ", status.message()));
}

// Applies the settings of the file, except for those in `given`, which the command line has set.
absl::Status ApplyFile(const std::string& file, const std::vector<bool>& given, ServerConfig& config) {
  std::ifstream stream(file);
  std::ostringstream text;
  if (!stream || !(text << stream.rdbuf())) {
    // The copy also fails for an empty file, which is valid and sets nothing.
    std::error_code ignored;
    if (!stream.is_open() || std::filesystem::is_directory(file, ignored)) {
      return Invalid(absl::StrCat("--config ", file, " cannot be read; does it exist, and may you read it?"));
    }
  }
  auto at = [&](const YAML::Mark& mark) {
    return absl::StrCat(file, ":", mark.line + 1, ":", mark.column + 1);
  };
  YAML::Node root;
  try {
    root = YAML::Load(text.str());
  } catch (const YAML::ParserException& error) {
    return Invalid(absl::StrCat(at(error.mark), ": invalid YAML: ", error.msg));
  }
  if (root.IsNull()) return absl::OkStatus();
  if (!root.IsMap())
    return Invalid(absl::StrCat(at(root.Mark()), ": expected lines of the form 'key: value'"));
  std::map<std::string, YAML::Mark> seen;
  for (const auto& entry : root) {
    const YAML::Node key_node = entry.first, value_node = entry.second;
    if (!key_node.IsScalar())
      return Invalid(absl::StrCat(at(key_node.Mark()), ": a key must be a single word"));
    const std::string key = absl::StrReplaceAll(key_node.Scalar(), {{"-", "_"}});
    const auto setting =
        std::find_if(Settings().begin(), Settings().end(), [&](const Setting& s) { return KeyOf(s) == key; });
    const auto structure = std::find_if(Structures().begin(), Structures().end(),
                                        [&](const Structure& s) { return s.key == key; });
    const bool structured = structure != Structures().end();
    if (setting == Settings().end() && !structured) {
      return Invalid(absl::StrCat(at(key_node.Mark()), ": unknown key '", key_node.Scalar(), "'",
                                  Suggestion(key, "", true)));
    }
    if (auto [first, is_new] = seen.emplace(key, key_node.Mark()); !is_new) {
      return Invalid(absl::StrCat(at(key_node.Mark()), ": duplicate key \"", key, "\" (first on line ",
                                  first->second.line + 1, "); remove one"));
    }
    const bool overridden = !structured && given[setting - Settings().begin()];
    if (!overridden) config.texts[key] = YAML::Dump(value_node);
    if (structured) {
      if (absl::Status status = structure->read(value_node, at, config); !status.ok()) return status;
      continue;
    }
    std::vector<YAML::Node> values;
    if (value_node.IsSequence() && setting->repeats) {
      for (size_t i = 0; i < value_node.size(); ++i) values.push_back(value_node[i]);
    } else {
      values.push_back(value_node);
    }
    // A value that the command line overrides is checked too, so that the validity of a file depends on
    // the file only.
    ServerConfig unused;
    ServerConfig& target = overridden ? unused : config;
    for (const YAML::Node& value : values) {
      if (!value.IsScalar()) {
        return Invalid(absl::StrCat(at(value.Mark()), ": ", key, " needs ",
                                    setting->repeats ? "a value or a list" : "one value"));
      }
      if (absl::Status status = setting->set(target, value.Scalar()); !status.ok()) {
        return Prefixed(absl::StrCat(at(value.Mark()), ": ", key), status);
      }
    }
  }
  return absl::OkStatus();
}

// Returns whether a worker on another machine can dial the address.
bool Reachable(const Address& address) {
  if (!address.unix_path.empty() || address.port == 0) return false;
  const std::string& host = address.host;
  return host != "0.0.0.0" && host != "[::]" && host != "[::1]" && host != "localhost" &&
         !absl::StartsWith(host, "127.");
}

absl::Status FillWorkerServer(ServerConfig& config) {
  if (config.scheduler != "slurm" || !config.worker_server.empty()) return absl::OkStatus();
  for (const std::string& listen : config.listen) {
    const absl::StatusOr<Address> address = ParseAddress(listen);
    if (!address.ok() || !Reachable(*address)) continue;
    config.worker_server = listen;
    return absl::OkStatus();
  }
  return Invalid(
      "scheduler slurm needs an address that workers on other nodes can dial; add --listen HOST:PORT with "
      "the name "
      "of this machine in the cluster, or set --worker-server HOST:PORT");
}

// Returns the default directory of deploy/frameworks.
std::string FrameworksDir() {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text == nullptr ? "" : text);
  };
  if (!value("SCALELAB_FRAMEWORKS").empty()) return value("SCALELAB_FRAMEWORKS");
  const std::string data =
      value("XDG_DATA_HOME").empty() ? value("HOME") + "/.local/share" : value("XDG_DATA_HOME");
  return data + "/scalelab/frameworks";
}

// Converts pending_jobs_per_user, the older name of limits.pending_allocations, to a rule of `limits`.
absl::Status FillLimits(ServerConfig& config) {
  if (config.pending_jobs_per_user == 0) return absl::OkStatus();
  std::vector<LimitRule>& rules = config.policy.limits.rules;
  if (!rules.empty() && rules.front().pending_allocations) {
    return Invalid(
        "pending_jobs_per_user is an older name of limits.pending_allocations, and both are set; remove "
        "pending_jobs_per_user");
  }
  LimitRule rule;
  rule.pending_allocations = config.pending_jobs_per_user;
  rules.insert(rules.begin(), rule);
  return absl::OkStatus();
}

absl::Status FillDefaults(ServerConfig& config) {
  if (absl::Status status = FillLimits(config); !status.ok()) return status;
  if (config.data_dir.empty()) {
    return Invalid(
        "--data DIR is missing; set the directory of the service's database, for example --data ~/scalelab");
  }
  if (config.users.empty() && config.viewers.empty()) config.users = {"*"};
  if (config.jobs_run_as == "user") {
    if (config.scheduler != "slurm")
      return Invalid("jobs_run_as: user needs scheduler: slurm; the local scheduler runs jobs as scalelabd");
    // Users have no access to anything in the data directory.
    if (config.runs_dir.empty() || absl::StartsWith(config.runs_dir + "/", config.data_dir + "/")) {
      return Invalid(absl::StrCat("jobs_run_as: user needs a directory of runs outside of ", config.data_dir,
                                  " that every user can reach on every node; set it with --runs DIR"));
    }
  }
  if (config.runs_dir.empty()) config.runs_dir = config.data_dir + "/runs";
  if (config.frameworks_dir.empty()) {
    if (absl::Status status = SetPath(config.frameworks_dir, FrameworksDir()); !status.ok()) return status;
  }
  if (config.listen.empty()) {
    if (absl::Status status =
            AddListen(config.listen, absl::StrCat("unix:", config.data_dir, "/scalelab.sock"));
        !status.ok()) {
      return Invalid(absl::StrCat(status.message(), ", with --listen unix:PATH or a shorter --data"));
    }
  }
  if (config.tls_certificate.empty() != config.tls_key.empty())
    return Invalid("--tls-certificate and --tls-key belong together; set both, or none");
  if (config.insecure && !config.tls_certificate.empty())
    return Invalid("--insecure true does not use --tls-certificate; remove one of them");
  if (absl::Status status = FillWorkerServer(config); !status.ok()) return status;
  if (config.local_slots == 0) {
    cpu_set_t cores;
    config.local_slots = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  }
  if (config.worker_program.empty()) {
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    config.worker_program = (self.parent_path() / "scalelab-worker").string();
  }
  std::error_code ignored;
  if (access(config.worker_program.c_str(), X_OK) != 0 ||
      std::filesystem::is_directory(config.worker_program, ignored)) {
    return Invalid(absl::StrCat(
        "the worker program ", config.worker_program,
        " does not exist or is not executable; build scalelab-worker or set its path with --worker-program"));
  }
  return absl::OkStatus();
}

// The contents of the command line, as text.
struct CommandLine {
  std::vector<std::vector<std::string>> values{Settings().size()};  // of each setting
  std::string file, backup_file, job_user, output = "text";
  bool check = false, print_version = false, test_job = false;
  CLI::App *backup = nullptr, *doctor = nullptr;
};

void Define(CLI::App& app, CommandLine& line) {
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.allow_extras();  // ParseCommand reports unknown options together with the most similar name
  app.get_formatter()->column_width(28);
  for (size_t i = 0; i < Settings().size(); ++i) {
    const Setting& setting = Settings()[i];
    app.add_option(absl::StrCat("--", setting.name), line.values[i], setting.help)
        ->option_text(setting.value)
        ->allow_extra_args(false);
  }
  app.add_option("--config", line.file,
                 "YAML file whose keys are the flags above without dashes; flags take precedence")
      ->option_text("FILE");
  app.add_flag("--check-config", line.check, "Check flags and file, print the first error, and exit");
  app.add_flag("--version", line.print_version, "Print the version and exit");
  line.backup =
      app.add_subcommand("backup", "Copy the database of --data to FILE, even while it is in use, and exit");
  line.backup->fallthrough()->add_option("FILE", line.backup_file, "Path of the new file")->required();
  line.doctor = app.add_subcommand(
      "doctor", "Check everything that the service needs, print what is wrong and what to do, and exit");
  line.doctor->fallthrough()
      ->add_option("-o,--output", line.output, "Format: text or json (default: text)")
      ->option_text("FORMAT");
  line.doctor->add_flag("--job", line.test_job,
                        "Also run a job of the scheduler that checks paths, programs and network of a node");
  line.doctor
      ->add_option("--as", line.job_user,
                   "Check the submission, and submit the job of --job, under the account USER; needs root "
                   "and jobs_run_as: user")
      ->option_text("USER");
}

constexpr char kDescription[] =
    "The coordinator of scalelab: queues studies, assigns their runs to workers and stores the results.";

}  // namespace

void VisitCommandLine(const std::function<void(const CLI::App&)>& visit) {
  CLI::App app(kDescription, "scalelabd");
  CommandLine line;
  Define(app, line);
  visit(app);
}

std::vector<ConfigKey> ConfigKeys() {
  std::vector<ConfigKey> keys;
  for (const Setting& setting : Settings())
    keys.push_back({KeyOf(setting), setting.value, setting.help, setting.repeats});
  return keys;
}

std::vector<std::string> SectionKeys() {
  std::vector<std::string> keys;
  for (const Structure& structure : Structures()) keys.emplace_back(structure.key);
  return keys;
}

std::vector<std::string> KeysThatNeedRestart(const ServerConfig& running, const ServerConfig& wanted) {
  std::set<std::string> keys;
  for (const auto* texts : {&running.texts, &wanted.texts}) {
    for (const auto& [key, text] : *texts) keys.insert(key);
  }
  const auto text_of = [](const ServerConfig& config, const std::string& key) {
    const auto it = config.texts.find(key);
    return it == config.texts.end() ? "" : it->second;
  };
  std::erase_if(keys, [&](const std::string& key) {
    for (const Setting& setting : Settings()) {
      if (setting.reloads && KeyOf(setting) == key) return true;
    }
    for (const Structure& structure : Structures()) {
      if (structure.reloads && structure.key == key) return true;
    }
    return text_of(running, key) == text_of(wanted, key);
  });
  return {keys.begin(), keys.end()};
}

absl::StatusOr<Command> ParseCommand(int argc, const char* const* argv, const std::string& version) {
  CLI::App app(kDescription, "scalelabd");
  CommandLine line;
  Define(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return Command{Command::Kind::kPrint, {}, app.help()};
  } catch (const CLI::ParseError& error) {
    return Invalid(absl::StrCat(absl::StripTrailingAsciiWhitespace(error.what()), "; see scalelabd --help"));
  }
  if (line.print_version)
    return Command{Command::Kind::kPrint, {}, absl::StrCat("scalelabd ", version, "\n")};
  if (const std::vector<std::string> extras = app.remaining(/*recurse=*/true); !extras.empty()) {
    const std::string word = extras.front().substr(0, extras.front().find('='));
    if (!absl::StartsWith(word, "--"))
      return Invalid(absl::StrCat("unexpected argument '", word, "'; see scalelabd --help"));
    return Invalid(absl::StrCat("unknown flag ", word, Suggestion(word.substr(2), "--", false),
                                "; see scalelabd --help"));
  }

  Command command;
  command.kind = line.check ? Command::Kind::kCheckConfig : Command::Kind::kServe;
  std::vector<bool> given(Settings().size());
  for (size_t i = 0; i < Settings().size(); ++i) {
    const Setting& setting = Settings()[i];
    if (line.values[i].size() > 1 && !setting.repeats) {
      return Invalid(
          absl::StrCat("--", setting.name, " is set ", line.values[i].size(), " times; set it once"));
    }
    given[i] = !line.values[i].empty();
    for (const std::string& value : line.values[i]) {
      if (absl::Status status = setting.set(command.config, value); !status.ok()) {
        return Prefixed(absl::StrCat("--", setting.name), status);
      }
    }
  }
  absl::Status read = line.file.empty() ? absl::OkStatus() : ApplyFile(line.file, given, command.config);
  if (read.ok() && !*line.backup) read = FillDefaults(command.config);
  if (*line.doctor) {
    command.kind = Command::Kind::kDoctor;
    command.test_job = line.test_job;
    command.job_user = line.job_user;
    if (!line.job_user.empty() && read.ok() && command.config.jobs_run_as != "user") {
      return Invalid(
          "doctor --as USER needs jobs_run_as: user; without it, the account of scalelabd submits the jobs");
    }
    command.text = std::string(read.message());
    std::string output;
    if (absl::Status status = SetChoice(output, line.output, {"text", "json"}); !status.ok())
      return Prefixed("doctor --output", status);
    command.json = output == "json";
    return command;
  }
  if (!read.ok()) return read;
  if (*line.backup) {
    command.kind = Command::Kind::kBackup;
    if (command.config.data_dir.empty())
      return Invalid("--data DIR is missing; set the directory of the service to back up");
    absl::Status status = SetPath(command.text, line.backup_file);
    if (!status.ok()) return Prefixed("backup FILE", status);
  }
  return command;
}

}  // namespace scalelab::server
