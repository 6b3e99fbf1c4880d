// The command line of scalelab-worker, and the objects that it configures.
#pragma once

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "worker/framework.h"
#include "worker/grpc_coordinator_client.h"
#include "worker/launcher.h"

namespace CLI {
class App;
}  // namespace CLI

namespace scalelab::worker {

struct WorkerOptions {
  CoordinatorAddress
      coordinator;        // --server, --allocation; the secret from the environment or standard input
  std::string node;       // --node; default: the host name
  int node_index = 0;     // --node-index
  std::string lock_file;  // --lock; empty: none
  absl::Duration give_up_after = absl::Hours(1);  // --give-up-after
  std::string trainer_program;                    // --trainer; default: see catalog/installation.h
  // --adapters; default: ../share/scalelab/adapters, relative to this program's directory
  std::string adapters;
  // --output-limit: limit in bytes for each of a rank's two output files
  int64_t output_limit = int64_t{64} << 20;
  Launcher launcher = Launcher::kMpirun;  // --launcher
  bool bind = false;                      // --bind
  std::string rank_program;               // see catalog/installation.h
  std::string own_program;                // path of this executable
};

// Parses the command line and takes the allocation's secret out of the environment or, if it is not there, from the
// first line of standard input. Returns false if the
// process should exit with `*exit_code`; the help text or the error has been printed by then.
bool ParseOptions(int argc, char** argv, WorkerOptions* options, int* exit_code);

// Calls `visit` with the definition of the command line. For the manual.
void VisitCommandLine(const std::function<void(const CLI::App&)>& visit);

// Returns the frameworks that serve all engines of this worker.
Frameworks NewFrameworks(const WorkerOptions& options);
// Describes this node for PlanLaunch.
LaunchHost NewLaunchHost(const WorkerOptions& options);

}  // namespace scalelab::worker
