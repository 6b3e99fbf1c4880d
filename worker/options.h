// The command line of scalelab-worker, and what follows from it.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "worker/framework.h"
#include "worker/grpc_coordinator_client.h"
#include "worker/launcher.h"

namespace scalelab::worker {

struct WorkerOptions {
  CoordinatorAddress coordinator;                 // --server, --allocation, SCALELAB_ALLOCATION_SECRET
  std::string node;                               // --node, by default the host's name
  int node_index = 0;                             // --node-index
  std::string lock_file;                          // --lock; empty: none
  absl::Duration give_up_after = absl::Hours(1);  // --give-up-after
  std::string trainer_program;  // --trainer, by default scalelab-trainer beside this program
  // --adapters, by default share/scalelab/adapters beside the directory of this program
  std::string adapters;
  // --output-limit: bytes that the standard output, and as many that the errors, of a rank may take
  int64_t output_limit = int64_t{64} << 20;
  Launcher launcher = Launcher::kMpirun;  // --launcher
  bool bind = false;                      // --bind
  std::string rank_program;               // scalelab-rank beside this program
  std::string own_program;
};

// False: the process should exit with *exit_code; whatever there is to say has been said. Takes the secret
// out of the environment.
bool ParseOptions(int argc, char** argv, WorkerOptions* options, int* exit_code);

Frameworks NewFrameworks(const WorkerOptions& options);
LaunchHost NewLaunchHost(const WorkerOptions& options);

}  // namespace scalelab::worker
