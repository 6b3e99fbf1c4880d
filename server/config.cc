#include "server/config.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
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
#include "server/services/socket.h"
#include "study/sbatch_options.h"
#include "yaml-cpp/yaml.h"

namespace scalelab::server {
namespace {

absl::Status Invalid(const std::string& sentence) { return absl::InvalidArgumentError(sentence); }

absl::StatusOr<std::string> AbsolutePath(const std::string& value) {
  if (value.empty()) return Invalid("the path is empty");
  std::error_code error;
  std::string path = std::filesystem::absolute(value, error).lexically_normal().string();
  if (error) return Invalid(absl::StrCat("'", value, "' is not a path: ", error.message()));
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

absl::Status SetPath(std::string& field, const std::string& value) {
  absl::StatusOr<std::string> path = AbsolutePath(value);
  if (!path.ok()) return path.status();
  field = *std::move(path);
  return absl::OkStatus();
}

absl::Status SetChoice(std::string& field, const std::string& value,
                       const std::vector<absl::string_view>& choices) {
  if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
    return Invalid(absl::StrCat("'", value, "' is not one of ", absl::StrJoin(choices, ", ")));
  }
  field = value;
  return absl::OkStatus();
}

absl::Status SetNumber(int& field, const std::string& value, int min, int max) {
  int number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < min || number > max) {
    return Invalid(absl::StrCat("'", value, "' is not a whole number from ", min, " to ", max));
  }
  field = number;
  return absl::OkStatus();
}

absl::Status SetTimeout(absl::Duration& field, const std::string& value) {
  double seconds = 0;
  if (!absl::SimpleAtod(value, &seconds) || !(seconds >= 1 && seconds <= 86400)) {
    return Invalid(absl::StrCat("'", value, "' is not a number of seconds from 1 to 86400"));
  }
  field = absl::Seconds(seconds);
  return absl::OkStatus();
}

absl::Status SetBool(bool& field, const std::string& value) {
  if (value != "true" && value != "false") return Invalid(absl::StrCat("'", value, "' is not true or false"));
  field = value == "true";
  return absl::OkStatus();
}

absl::Status AddListen(std::vector<std::string>& field, const std::string& value) {
  absl::StatusOr<Address> address = ParseAddress(value);
  if (!address.ok()) return address.status();
  if (std::find(field.begin(), field.end(), address->text()) == field.end()) field.push_back(address->text());
  return absl::OkStatus();
}

absl::Status SetWorkerServer(std::string& field, const std::string& value) {
  absl::StatusOr<Address> address = ParseAddress(value);
  if (!address.ok()) return address.status();
  if (!address->unix_path.empty() || address->port == 0) {
    return Invalid(
        absl::StrCat("'", value, "' is not of the form HOST:PORT, which workers on other nodes need"));
  }
  field = address->text();
  return absl::OkStatus();
}

// Adds an option in the form NAME=VALUE, or NAME for an option without a value.
absl::Status AddSbatchOption(std::vector<std::pair<std::string, std::string>>& field,
                             const std::string& value) {
  std::pair<std::string, std::string> option = absl::StrSplit(value, absl::MaxSplits('=', 1));
  if (const std::string mistake = SbatchOptionMistake(option.first, option.second); !mistake.empty())
    return Invalid(mistake);
  for (const auto& [name, unused] : field) {
    if (name == option.first)
      return Invalid(absl::StrCat("sbatch option '", name, "' is repeated; remove one"));
  }
  field.push_back(std::move(option));
  return absl::OkStatus();
}

// A setting: the flag --NAME, and the key NAME of the file, with '_' instead of '-'.
struct Setting {
  const char* name;
  const char* value;
  const char* help;
  absl::Status (*set)(ServerConfig& config, const std::string& value);
  bool repeats = false;
};

const std::vector<Setting>& Settings() {
  static const auto* settings = new std::vector<Setting>{
      {"data", "DIR", "Directory of the database, token and socket; created when absent",
       [](ServerConfig& c, const std::string& v) { return SetPath(c.data_dir, v); }},
      {"runs", "DIR", "Directory of the files of attempts, visible on every node (default: DATA/runs)",
       [](ServerConfig& c, const std::string& v) { return SetPath(c.runs_dir, v); }},
      {"listen", "ADDRESS",
       "Address to serve on: unix:PATH or HOST:PORT, may be repeated (default: unix:DATA/scalelab.sock)",
       [](ServerConfig& c, const std::string& v) { return AddListen(c.listen, v); }, /*repeats=*/true},
      {"scheduler", "NAME", "Scheduler that allocates nodes: local or slurm (default: local)",
       [](ServerConfig& c, const std::string& v) {
         return SetChoice(c.scheduler, v, {"local", "slurm"});
       }},
      {"worker-server", "HOST:PORT",
       "Address that workers on other nodes dial (default: the first --listen that they can reach)",
       [](ServerConfig& c, const std::string& v) { return SetWorkerServer(c.worker_server, v); }},
      {"sbatch-option", "NAME=VALUE",
       "sbatch option for every job, may be repeated; the options of a study take precedence",
       [](ServerConfig& c, const std::string& v) { return AddSbatchOption(c.sbatch_options, v); },
       /*repeats=*/true},
      {"local-slots", "N",
       "Single-core ranks that scheduler local runs at once (default: the number of cores)",
       [](ServerConfig& c, const std::string& v) { return SetNumber(c.local_slots, v, 1, 100'000); }},
      {"worker-program", "FILE",
       "Path of scalelab-worker, visible on every node (default: in the directory of scalelabd)",
       [](ServerConfig& c, const std::string& v) { return SetPath(c.worker_program, v); }},
      {"worker-timeout", "SECONDS",
       "A worker without a heartbeat for this long is lost, although its job still runs (default: 900)",
       [](ServerConfig& c, const std::string& v) { return SetTimeout(c.worker_timeout, v); }},
      {"pending-jobs-per-user", "N",
       "Limit of jobs of one user and partition that wait at the scheduler (default: 4)",
       [](ServerConfig& c, const std::string& v) {
         return SetNumber(c.pending_jobs_per_user, v, 1, 100'000);
       }},
      {"poll-interval", "SECONDS",
       "Time between polls of the scheduler, doubled while no job is about to start or end (default: 15)",
       [](ServerConfig& c, const std::string& v) { return SetTimeout(c.poll_interval, v); }},
      {"rollback-journal", "BOOL", "true: slower database mode for a network filesystem (default: false)",
       [](ServerConfig& c, const std::string& v) { return SetBool(c.rollback_journal, v); }},
      {"frameworks", "DIR",
       "Environments of deploy/frameworks (default: $SCALELAB_FRAMEWORKS, or below ~/.local/share)",
       [](ServerConfig& c, const std::string& v) { return SetPath(c.frameworks_dir, v); }},
      {"reflection", "BOOL", "true: serve gRPC's reflection, for tools such as grpcurl (default: false)",
       [](ServerConfig& c, const std::string& v) { return SetBool(c.reflection, v); }},
      {"log-format", "FORMAT", "Format of log lines on stderr: text or json (default: text)",
       [](ServerConfig& c, const std::string& v) {
         return SetChoice(c.log_format, v, {"text", "json"});
       }},
      {"log-level", "LEVEL",
       "Minimum level of log lines: trace, debug, info, warning or error (default: info)",
       [](ServerConfig& c, const std::string& v) {
         return SetChoice(c.log_level, v, {"trace", "debug", "info", "warning", "error"});
       }},
  };
  return *settings;
}

std::string KeyOf(const Setting& setting) { return absl::StrReplaceAll(setting.name, {{"-", "_"}}); }

// Returns "; did you mean data?" for a similar name, else nothing.
std::string Suggestion(const std::string& word, const std::string& prefix, bool keys) {
  std::vector<std::string> names;
  for (const Setting& setting : Settings()) names.push_back(keys ? KeyOf(setting) : setting.name);
  if (keys) names.push_back("environments");
  if (!keys) names.insert(names.end(), {"config", "check-config", "version", "help"});
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
    if (!stream.is_open() || std::filesystem::is_directory(file)) {
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
    const bool environments = key == "environments";
    if (setting == Settings().end() && !environments) {
      return Invalid(absl::StrCat(at(key_node.Mark()), ": unknown key '", key_node.Scalar(), "'",
                                  Suggestion(key, "", true)));
    }
    if (auto [first, is_new] = seen.emplace(key, key_node.Mark()); !is_new) {
      return Invalid(absl::StrCat(at(key_node.Mark()), ": duplicate key \"", key, "\" (first on line ",
                                  first->second.line + 1, "); remove one"));
    }
    if (environments) {
      if (absl::Status status = ReadEnvironments(value_node, at, &config.environments); !status.ok())
        return status;
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
    ServerConfig& target = given[setting - Settings().begin()] ? unused : config;
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

absl::Status FillDefaults(ServerConfig& config) {
  if (config.data_dir.empty()) {
    return Invalid(
        "--data DIR is missing; set the directory of the service's database, for example --data ~/scalelab");
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
  if (access(config.worker_program.c_str(), X_OK) != 0 ||
      std::filesystem::is_directory(config.worker_program)) {
    return Invalid(absl::StrCat(
        "the worker program ", config.worker_program,
        " does not exist or is not executable; build scalelab-worker or set its path with --worker-program"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Command> ParseCommand(int argc, const char* const* argv, const std::string& version) {
  CLI::App app(
      "The coordinator of scalelab: queues studies, assigns their runs to workers and stores the results.",
      "scalelabd");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.allow_extras();  // reported below, with the most similar name
  app.get_formatter()->column_width(28);
  std::vector<std::vector<std::string>> values(Settings().size());
  for (size_t i = 0; i < Settings().size(); ++i) {
    const Setting& setting = Settings()[i];
    app.add_option(absl::StrCat("--", setting.name), values[i], setting.help)
        ->option_text(setting.value)
        ->allow_extra_args(false);
  }
  std::string file;
  bool check = false, print_version = false;
  app.add_option("--config", file,
                 "YAML file whose keys are the flags above without dashes; flags take precedence")
      ->option_text("FILE");
  app.add_flag("--check-config", check, "Check flags and file, print the first error, and exit");
  app.add_flag("--version", print_version, "Print the version and exit");
  std::string backup_file;
  CLI::App* backup =
      app.add_subcommand("backup", "Copy the database of --data to FILE, even while it is in use, and exit");
  backup->fallthrough()->add_option("FILE", backup_file, "Path of the new file")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return Command{Command::Kind::kPrint, {}, app.help()};
  } catch (const CLI::ParseError& error) {
    return Invalid(absl::StrCat(absl::StripTrailingAsciiWhitespace(error.what()), "; see scalelabd --help"));
  }
  if (print_version) return Command{Command::Kind::kPrint, {}, absl::StrCat("scalelabd ", version, "\n")};
  if (const std::vector<std::string> extras = app.remaining(/*recurse=*/true); !extras.empty()) {
    const std::string word = extras.front().substr(0, extras.front().find('='));
    if (!absl::StartsWith(word, "--"))
      return Invalid(absl::StrCat("unexpected argument '", word, "'; see scalelabd --help"));
    return Invalid(absl::StrCat("unknown flag ", word, Suggestion(word.substr(2), "--", false),
                                "; see scalelabd --help"));
  }

  Command command;
  command.kind = check ? Command::Kind::kCheckConfig : Command::Kind::kServe;
  std::vector<bool> given(Settings().size());
  for (size_t i = 0; i < Settings().size(); ++i) {
    const Setting& setting = Settings()[i];
    if (values[i].size() > 1 && !setting.repeats) {
      return Invalid(absl::StrCat("--", setting.name, " is set ", values[i].size(), " times; set it once"));
    }
    given[i] = !values[i].empty();
    for (const std::string& value : values[i]) {
      if (absl::Status status = setting.set(command.config, value); !status.ok()) {
        return Prefixed(absl::StrCat("--", setting.name), status);
      }
    }
  }
  if (!file.empty()) {
    if (absl::Status status = ApplyFile(file, given, command.config); !status.ok()) return status;
  }
  if (*backup) {
    command.kind = Command::Kind::kBackup;
    if (command.config.data_dir.empty())
      return Invalid("--data DIR is missing; set the directory of the service to back up");
    absl::Status status = SetPath(command.text, backup_file);
    if (!status.ok()) return Prefixed("backup FILE", status);
    return command;
  }
  if (absl::Status status = FillDefaults(command.config); !status.ok()) return status;
  return command;
}

}  // namespace scalelab::server
