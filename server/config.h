// What scalelabd is told: by flags, by a YAML file, or by neither. Every flag is a key of the file; flags
// win.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/frameworks/config_environments.h"

namespace scalelab::server {

struct ServerConfig {
  // Directory of everything the service keeps on this machine: database, token, socket, allocations.
  // Absolute.
  std::string data_dir;
  // Directory of attempts (specification, events, logs); on a cluster one that every node sees. Absolute.
  // By default <data_dir>/runs.
  std::string runs_dir;
  // Where to serve: "unix:/absolute/path" or "host:port"; by default unix:<data_dir>/scalelab.sock.
  std::vector<std::string> listen;
  // What gives out nodes: "local" or "slurm".
  std::string scheduler = "local";
  // slurm: "host:port" that workers dial; by default the first of `listen` that other machines can reach.
  std::string worker_server;
  // slurm: sbatch options for every job, name without dashes and value (empty: it takes none); those of a
  // study win.
  std::vector<std::pair<std::string, std::string>> sbatch_options;
  // Single-core ranks the local scheduler runs at once; by default the cores this process may use.
  int local_slots = 0;
  // scalelab-worker, on a cluster where every node sees it; by default the one beside scalelabd.
  std::string worker_program;
  // A worker that was not heard of for so long is lost.
  absl::Duration worker_timeout = absl::Seconds(30);
  // Between two questions to the scheduler; twice as long when no job is about to begin or to end.
  absl::Duration poll_interval = absl::Seconds(15);
  // SQLite rollback journal instead of WAL, for a data_dir on a network filesystem.
  bool rollback_journal = false;
  // Where deploy/frameworks has built environments; by default $SCALELAB_FRAMEWORKS, or scalelab/frameworks
  // in $XDG_DATA_HOME (~/.local/share). Every node must see it. Absolute.
  std::string frameworks_dir;
  // Of engines that run elsewhere; only from the file.
  std::vector<EnvironmentConfig> environments;
  std::string log_format = "text";  // or "json"
  std::string log_level = "info";   // trace, debug, info, warning, error
};

// What the command line asks for.
struct Command {
  enum class Kind { kServe, kCheckConfig, kBackup, kPrint };
  Kind kind = Kind::kServe;
  ServerConfig config;  // complete, defaults filled in; not for kPrint, for kBackup without defaults
  std::string text;     // kPrint (--help, --version): for stdout; kBackup: the file to make, absolute
};

// Reads the command line and the file that --config names. `version` is what --version prints after the
// program's name. INVALID_ARGUMENT: one sentence that names the flag, or file:line:column and key, and what
// to write instead.
absl::StatusOr<Command> ParseCommand(int argc, const char* const* argv, const std::string& version);

}  // namespace scalelab::server
