// The configuration of scalelabd, from flags and a YAML file. Every flag is also a key of the file;
// flags take precedence.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/frameworks/config_environments.h"

namespace scalelab::server {

struct ServerConfig {
  // Directory of the database, token, socket and allocations. Absolute.
  std::string data_dir;
  // Directory of attempts (specification, events, logs); on a cluster visible on every node.
  // Absolute. Default: <data_dir>/runs.
  std::string runs_dir;
  // Addresses to serve on: "unix:/absolute/path" or "host:port". Default: unix:<data_dir>/scalelab.sock.
  std::vector<std::string> listen;
  // The scheduler that allocates nodes: "local" or "slurm".
  std::string scheduler = "local";
  // slurm: "host:port" that workers dial. Default: the first of `listen` that other machines can reach.
  std::string worker_server;
  // slurm: sbatch options for every job: name without dashes and value (empty: the option takes none).
  // Options of a study take precedence.
  std::vector<std::pair<std::string, std::string>> sbatch_options;
  // local: number of single-core ranks to run at once. Default: the number of cores that this
  // process may use.
  int local_slots = 0;
  // Path of scalelab-worker. On a cluster it must be visible on every node. Default: the scalelab-worker in
  // the directory of scalelabd.
  std::string worker_program;
  // A worker without a heartbeat for this long is lost, even if the scheduler reports that its job runs.
  absl::Duration worker_timeout = absl::Minutes(15);
  // Limit of jobs of one user and partition that wait at the scheduler.
  int pending_jobs_per_user = 4;
  // Time between two polls of the scheduler; twice as long when no job is about to start or to end.
  absl::Duration poll_interval = absl::Seconds(15);
  // Use SQLite's rollback journal instead of WAL, for a data_dir on a network filesystem.
  bool rollback_journal = false;
  // Directory of the environments that deploy/frameworks builds, visible on every node. Absolute. Default:
  // $SCALELAB_FRAMEWORKS, or scalelab/frameworks in $XDG_DATA_HOME (~/.local/share).
  std::string frameworks_dir;
  // Engines whose environments are not in frameworks_dir. Only the configuration file can set this.
  std::vector<EnvironmentConfig> environments;
  // Serve gRPC's reflection, which describes the API to anyone who can connect.
  bool reflection = false;
  std::string log_format = "text";  // or "json"
  std::string log_level = "info";   // trace, debug, info, warning, error
};

// The action that the command line selects.
struct Command {
  enum class Kind { kServe, kCheckConfig, kBackup, kPrint };
  Kind kind = Kind::kServe;
  ServerConfig config;  // with defaults; for kBackup without defaults, for kPrint empty
  std::string text;  // kPrint (--help, --version): output for stdout; kBackup: path of the new file, absolute
};

// Parses the command line and the file of --config. --version prints the program's name and `version`. The
// message of INVALID_ARGUMENT names the flag, or file:line:column and the key, and what to write instead.
absl::StatusOr<Command> ParseCommand(int argc, const char* const* argv, const std::string& version);

}  // namespace scalelab::server
