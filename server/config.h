// The configuration of scalelabd, from flags and a YAML file. Every flag is also a key of the file;
// flags take precedence.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/fair/policy.h"
#include "server/frameworks/config_environments.h"
#include "server/notify/settings.h"
#include "server/retention/rules.h"

namespace CLI {
class App;
}  // namespace CLI

namespace scalelab::server {

struct ServerConfig {
  // Directory of the database, token, socket and allocations. Absolute.
  std::string data_dir;
  // Directory of attempts (specification, events, logs); on a cluster visible on every node.
  // Absolute. Default: <data_dir>/runs.
  std::string runs_dir;
  // Addresses to serve on: "unix:/absolute/path" or "host:port". Default: unix:<data_dir>/scalelab.sock.
  std::vector<std::string> listen;
  // Mode of Unix sockets. With 0666 every account of this machine may connect; the server identifies each
  // by its name.
  mode_t socket_mode = 0600;
  // The accounts that have a role: names, "@group", or "*" for all. The account of scalelabd and root always
  // are admins. Default: everybody who may connect is a user.
  std::vector<std::string> admins, users, viewers;
  // Accounts of reverse proxies on the Unix socket, whose calls need a token.
  std::vector<std::string> proxies;
  // The certificate and the private key of TCP listeners, PEM files. Absolute. Default: a pair that the first start makes.
  std::string tls_certificate, tls_key;
  // The certificate of the authority that signed tls_certificate, for workers: a PEM file. Absolute. Default: workers
  // trust the authorities of their system.
  std::string tls_authority;
  // Serve TCP without TLS.
  bool insecure = false;
  // The Unix socket of munged; empty for the system's.
  std::string munge_socket;
  // The scheduler that allocates nodes: "local" or "slurm".
  std::string scheduler = "local";
  // slurm: the account of the jobs: "service" (that of scalelabd), or "user" (that of the study's owner, through the agent
  // that the owner runs).
  std::string jobs_run_as = "service";
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
  // Limits and fair share. Only the configuration file can set it, except for this older name of one of the limits.
  Policy policy;
  int pending_jobs_per_user = 0;  // 0: not set
  // Time between two polls of the scheduler; it is doubled if no job is expected to start or end soon.
  absl::Duration poll_interval = absl::Seconds(15);
  // Use SQLite's rollback journal instead of WAL, for a data_dir on a network filesystem.
  bool rollback_journal = false;
  // Directory of the environments that deploy/frameworks builds, visible on every node. Absolute. Default:
  // $SCALELAB_FRAMEWORKS, or scalelab/frameworks in $XDG_DATA_HOME (~/.local/share).
  std::string frameworks_dir;
  // Engines whose environments are not in frameworks_dir. Only the configuration file can set this.
  std::vector<EnvironmentConfig> environments;
  // Which data is removed, and when. Only the configuration file can set this.
  RetentionRules retention;
  // How notifications are sent. Only the configuration file can set this.
  NotifySettings notify;
  // Calibrate nodes before and after attempts, for studies that do not set noise_guard.calibrate.
  bool noise_guard = true;
  // Loopback address on which metrics are served; empty: they are not.
  std::string metrics;
  // Loopback address on which the dashboard is served; empty: it is not.
  std::string web;
  // Address of the dashboard behind a reverse proxy, with a slash at its end; empty without a proxy.
  std::string web_url;
  // Serve gRPC's reflection, which describes the API, on the Unix socket.
  bool reflection = false;
  std::string log_format = "text";  // or "json"
  std::string log_level = "info";   // trace, debug, info, warning, error
  // Maps each key of the file to its value as YAML. Leaves out keys that the command line overrides.
  std::map<std::string, std::string> texts;
};

// Returns the keys whose values in the file differ between the configurations, and that a running scalelabd cannot change.
std::vector<std::string> KeysThatNeedRestart(const ServerConfig& running, const ServerConfig& wanted);

// The action that the command line selects.
struct Command {
  enum class Kind { kServe, kCheckConfig, kBackup, kDoctor, kPrint };
  Kind kind = Kind::kServe;
  ServerConfig config;  // with defaults; without them for kBackup; empty for kPrint
  // kPrint (--help, --version): output for stdout. kBackup: absolute path of the new file. kDoctor: the mistake in
  // the configuration; empty if there is none.
  std::string text;
  bool json = false;          // kDoctor: -o json
  bool test_job = false;      // kDoctor: --job
  std::string job_user = {};  // kDoctor: --as
};

// Parses the command line and the file of --config. --version prints the program's name and `version`. The
// message of INVALID_ARGUMENT names the flag, or file:line:column and the key, and what to write instead.
absl::StatusOr<Command> ParseCommand(int argc, const char* const* argv, const std::string& version);

// Calls `visit` with the definition of the command line. For the manual.
void VisitCommandLine(const std::function<void(const CLI::App&)>& visit);

// A key of the configuration file, as the manual describes it.
struct ConfigKey {
  std::string name, value, help;
  bool repeats = false;  // takes a list too
};
// Returns the keys that are flags too, in the order of the table that defines them.
std::vector<ConfigKey> ConfigKeys();
// Returns the keys that only the file can set.
std::vector<std::string> SectionKeys();

}  // namespace scalelab::server
