#include "server/config_keys.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "server/identity/users.h"
#include "server/metrics/http_server.h"
#include "server/rpc/socket.h"
#include "server/web/origin.h"
#include "study/sbatch_options.h"
#include "yaml-cpp/yaml.h"

namespace scalelab::server {

absl::Status Invalid(const std::string& sentence) { return absl::InvalidArgumentError(sentence); }

namespace {

absl::StatusOr<std::string> AbsolutePath(const std::string& value) {
  if (value.empty()) return Invalid("the path is empty");
  std::error_code error;
  std::string path = std::filesystem::absolute(value, error).lexically_normal().string();
  if (error) return Invalid(absl::StrCat("'", value, "' is not a path: ", error.message()));
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
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

absl::Status SetSocketMode(mode_t& field, const std::string& value) {
  if (value == "0600" || value == "0660" || value == "0666") {
    field = static_cast<mode_t>(std::stoi(value, nullptr, 8));
    return absl::OkStatus();
  }
  return Invalid(
      absl::StrCat("'", value, "' is not 0600 (this account), 0660 (its group) or 0666 (everybody)"));
}

absl::Status AddRoleEntry(std::vector<std::string>& field, const std::string& value) {
  if (absl::Status status = CheckRoleEntry(value); !status.ok()) return status;
  field.push_back(value);
  return absl::OkStatus();
}

// Refuses a name that no account has. Otherwise, if a name is misspelt, the calls of that proxy would count
// as calls of the proxy's account.
absl::Status AddProxy(std::vector<std::string>& field, const std::string& value) {
  if (getpwnam(value.c_str()) == nullptr)
    return Invalid(
        absl::StrCat("there is no account '", value, "' on this machine; name the account of the proxy"));
  return AddRoleEntry(field, value);
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

}  // namespace

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

absl::Status AddListen(std::vector<std::string>& field, const std::string& value) {
  absl::StatusOr<Address> address = ParseAddress(value);
  if (!address.ok()) return address.status();
  if (std::find(field.begin(), field.end(), address->text()) == field.end()) field.push_back(address->text());
  return absl::OkStatus();
}

const std::vector<Setting>& Settings() {
  static const auto* settings = new std::vector<Setting>{
      {"data", "DIR", "Directory of the database, token and socket; created when absent",
       [](ServerConfig& c, const std::string& v) { return SetPath(c.data_dir, v); }},
      {"runs", "DIR", "Directory of the files of attempts, visible on every node (default: DATA/runs)",
       [](ServerConfig& c, const std::string& v) { return SetPath(c.runs_dir, v); }},
      {"listen", "ADDRESS",
       "Address to serve on: unix:PATH or HOST:PORT, may be repeated (default: unix:DATA/scalelab.sock)",
       [](ServerConfig& c, const std::string& v) { return AddListen(c.listen, v); }, /*repeats=*/true},
      {"socket-mode", "MODE",
       "Who may connect to Unix sockets: 0600 this account, 0660 its group, 0666 everybody (default: 0600)",
       [](ServerConfig& c, const std::string& v) { return SetSocketMode(c.socket_mode, v); }},
      {"admins", "NAME",
       "Account or @group with the role admin, may be repeated; scalelabd's account and root always are",
       [](ServerConfig& c, const std::string& v) { return AddRoleEntry(c.admins, v); }, /*repeats=*/true,
       /*reloads=*/true},
      {"users", "NAME",
       "Account or @group that may submit studies, or * for all; may be repeated (default: * without "
       "--viewers)",
       [](ServerConfig& c, const std::string& v) { return AddRoleEntry(c.users, v); }, /*repeats=*/true,
       /*reloads=*/true},
      {"viewers", "NAME", "Account or @group that may only read, or * for all; may be repeated",
       [](ServerConfig& c, const std::string& v) { return AddRoleEntry(c.viewers, v); }, /*repeats=*/true,
       /*reloads=*/true},
      {"proxies", "NAME",
       "Account of a reverse proxy on the Unix socket, whose calls need a token; may be repeated",
       [](ServerConfig& c, const std::string& v) { return AddProxy(c.proxies, v); }, /*repeats=*/true},
      {"tls-certificate", "FILE",
       "Certificate for TCP, followed by those of its authorities (default: one that the first start makes)",
       [](ServerConfig& c, const std::string& v) { return SetPath(c.tls_certificate, v); }},
      {"tls-key", "FILE", "Private key of the certificate, without a passphrase",
       [](ServerConfig& c, const std::string& v) { return SetPath(c.tls_key, v); }},
      {"tls-authority", "FILE",
       "Certificate of the authority that signed --tls-certificate, for workers (default: those of their "
       "system)",
       [](ServerConfig& c, const std::string& v) { return SetPath(c.tls_authority, v); }},
      {"insecure", "BOOL", "true: serve TCP without encryption (default: false)",
       [](ServerConfig& c, const std::string& v) { return SetBool(c.insecure, v); }},
      {"munge-socket", "FILE", "Socket of munged, for logins from other nodes (default: that of the system)",
       [](ServerConfig& c, const std::string& v) { return SetPath(c.munge_socket, v); }},
      {"scheduler", "NAME", "Scheduler that allocates nodes: local or slurm (default: local)",
       [](ServerConfig& c, const std::string& v) {
         return SetChoice(c.scheduler, v, {"local", "slurm"});
       }},
      {"jobs-run-as", "WHO",
       "Account of Slurm jobs: service (that of scalelabd) or user (that of the study's owner) (default: "
       "service)",
       [](ServerConfig& c, const std::string& v) {
         return SetChoice(c.jobs_run_as, v, {"service", "user"});
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
       [](ServerConfig& c, const std::string& v) { return SetTimeout(c.worker_timeout, v); },
       /*repeats=*/false, /*reloads=*/true},
      {"pending-jobs-per-user", "N",
       "Older name of limits.pending_allocations of the file: jobs of one user and partition that wait at "
       "the "
       "scheduler (default: 4)",
       [](ServerConfig& c, const std::string& v) {
         return SetNumber(c.pending_jobs_per_user, v, 1, 100'000);
       },
       /*repeats=*/false, /*reloads=*/true},
      {"poll-interval", "SECONDS",
       "Time between polls of the scheduler, doubled while no job is about to start or end (default: 15)",
       [](ServerConfig& c, const std::string& v) { return SetTimeout(c.poll_interval, v); },
       /*repeats=*/false, /*reloads=*/true},
      {"noise-guard", "BOOL",
       "false: studies whose noise_guard does not set calibrate do not calibrate nodes (default: true)",
       [](ServerConfig& c, const std::string& v) { return SetBool(c.noise_guard, v); }},
      {"rollback-journal", "BOOL", "true: slower database mode for a network filesystem (default: false)",
       [](ServerConfig& c, const std::string& v) { return SetBool(c.rollback_journal, v); }},
      {"frameworks", "DIR",
       "Environments of deploy/frameworks (default: $SCALELAB_FRAMEWORKS, or below ~/.local/share)",
       [](ServerConfig& c, const std::string& v) { return SetPath(c.frameworks_dir, v); }},
      {"metrics", "HOST:PORT",
       "Loopback address that serves metrics for Prometheus over HTTP (default: none)",
       [](ServerConfig& c, const std::string& v) {
         c.metrics = v;
         return CheckLoopback(v);
       }},
      {"web", "HOST:PORT", "Loopback address that serves the dashboard for browsers (default: none)",
       [](ServerConfig& c, const std::string& v) {
         c.web = v;
         return CheckWebAddress(v);
       }},
      {"web-url", "URL",
       "Address of the dashboard behind a reverse proxy, for example https://example.org/scalelab/ (default: "
       "none)",
       [](ServerConfig& c, const std::string& v) {
         c.web_url = v;
         return SitePolicy::For(v).status();
       }},
      {"reflection", "BOOL",
       "true: serve gRPC's reflection on the Unix socket, for tools such as grpcurl (default: false)",
       [](ServerConfig& c, const std::string& v) { return SetBool(c.reflection, v); }},
      {"log-format", "FORMAT", "Format of log lines on stderr: text or json (default: text)",
       [](ServerConfig& c, const std::string& v) {
         return SetChoice(c.log_format, v, {"text", "json"});
       }},
      {"log-level", "LEVEL",
       "Minimum level of log lines: trace, debug, info, warning or error (default: info)",
       [](ServerConfig& c, const std::string& v) {
         return SetChoice(c.log_level, v, {"trace", "debug", "info", "warning", "error"});
       },
       /*repeats=*/false, /*reloads=*/true},
  };
  return *settings;
}

const std::vector<Structure>& Structures() {
  static const auto* structures =
      new std::vector<Structure>{{"environments",
                                  [](const YAML::Node& node, const PlaceText& at, ServerConfig& c) {
                                    return ReadEnvironments(node, at, &c.environments);
                                  },
                                  false},
                                 {"limits",
                                  [](const YAML::Node& node, const PlaceText& at, ServerConfig& c) {
                                    return ReadLimits(node, at, &c.policy.limits);
                                  },
                                  true},
                                 {"retention",
                                  [](const YAML::Node& node, const PlaceText& at, ServerConfig& c) {
                                    return ReadRetention(node, at, &c.retention);
                                  },
                                  true},
                                 {"notify",
                                  [](const YAML::Node& node, const PlaceText& at, ServerConfig& c) {
                                    return ReadNotify(node, at, &c.notify);
                                  },
                                  false},
                                 {"notify_commands",
                                  [](const YAML::Node& node, const PlaceText& at, ServerConfig& c) {
                                    return ReadNotifyCommands(node, at, &c.notify);
                                  },
                                  false},
                                 {"fair_share",
                                  [](const YAML::Node& node, const PlaceText& at, ServerConfig& c) {
                                    return ReadFairShare(node, at, &c.policy.fair_share);
                                  },
                                  true}};
  return *structures;
}

std::string KeyOf(const Setting& setting) { return absl::StrReplaceAll(setting.name, {{"-", "_"}}); }

}  // namespace scalelab::server
