// Plans which processes a node starts for an attempt. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scalelab/v1/worker.pb.h"
#include "worker/framework.h"
#include "worker/process/process.h"

namespace scalelab::worker {

// Environment variable with the attempt's token, set for every process of the attempt.
inline constexpr char kAttemptTag[] = "SCALELAB_ATTEMPT";

// Environment variable with the cores of the node's ranks, read by scalelab-rank: one list per
// local rank, "0,1/2,3".
inline constexpr char kRankCpus[] = "SCALELAB_RANK_CPUS";

// The program that starts an attempt's ranks.
enum class Launcher {
  kMpirun,  // on this machine, as descendants of the worker; ranks without MPI are started directly
  kSrun,    // on all nodes of the Slurm job, as a job step: children of slurmstepd
};

// Properties of this node that a launch depends on.
struct LaunchHost {
  Launcher launcher = Launcher::kMpirun;
  std::vector<std::string> environment;  // variables that ranks inherit, see InheritedEnvironment
  std::string rank_program;              // path of scalelab-rank
  std::string mpirun = "mpirun", srun = "srun";
  int cpus = 1;  // number of cores the worker may use
  // Cores to pin ranks to, if there are enough for all ranks of the attempt; empty: ranks are not pinned.
  std::vector<int> own_cpus;
  bool root = false;        // the worker runs as root, for which mpirun needs an option
  bool single_copy = true;  // ranks may use cross-memory attach (CMA), see SingleCopyAllowed
};

struct LaunchPlan {
  std::vector<Command> commands;
  std::string tag;  // Job::tag
  // "mpirun", "srun" or "torchrun" if commands[0] starts the ranks; empty if the commands are the ranks.
  std::string launcher;
  // Contents of SLURM_HOSTFILE, <directory>/hosts: the node of each process, one per line. Empty: not needed.
  std::string hosts;
};

// Returns the variables of the worker's `environment` ("NAME=value") that ranks inherit. Leaves out the
// variables of a surrounding MPI or Slurm step, because MPI would treat the ranks as part of that step, and
// the variables of scalelab, which include the secret. Keeps the Slurm variables that identify the job. Keeps
// OMPI_MCA_* and PMIX_MCA_*, the site's settings of MPI, unless there is a surrounding MPI step: MPI launchers
// set such variables for their own processes.
std::vector<std::string> InheritedEnvironment(const std::vector<std::string>& environment);

// Returns the processes to start on the attempt's first node, which launches for all nodes. Returns
// FAILED_PRECONDITION if the attempt spans several nodes and the launcher is mpirun, if an engine of one
// process spans several nodes, or if the study has launcher srun without Slurm; INVALID_ARGUMENT if the attempt has no ranks.
absl::StatusOr<LaunchPlan> PlanLaunch(const v1::SynchronizeResponse::DesiredAttempt& attempt,
                                      const RankProgram& program, const LaunchHost& host);

// The ranks on one node: the first and their number.
struct RankRange {
  int first = 0;
  int count = 0;
};
// Returns the ranks on the node with index `place` in the attempt's list of nodes.
RankRange RanksOn(const v1::SynchronizeResponse::DesiredAttempt& attempt, int place);

}  // namespace scalelab::worker
