// From "train this, on these nodes" to the processes that have to be started for it. Pure: reads nothing but
// its arguments.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scalelab/v1/worker.pb.h"
#include "worker/framework.h"
#include "worker/process/process.h"

namespace scalelab::worker {

// Variable whose value is the attempt's token; every process of the attempt has it.
inline constexpr char kAttemptTag[] = "SCALELAB_ATTEMPT";

// Tells scalelab-rank its cores: of each rank of the node a list, "0,1/2,3".
inline constexpr char kRankCpus[] = "SCALELAB_RANK_CPUS";

// What starts the ranks of an attempt.
enum class Launcher {
  kMpirun,  // on this machine, as the worker's own processes; a rank that needs no MPI is started directly
  kSrun,    // anywhere in the Slurm job, as a step of it: children of slurmstepd
};

// What the launcher has to know of the node.
struct LaunchHost {
  Launcher launcher = Launcher::kMpirun;
  std::vector<std::string> environment;  // what ranks inherit, see InheritedEnvironment
  std::string rank_program;              // path of scalelab-rank
  std::string mpirun = "mpirun", srun = "srun";
  int cpus = 1;  // cores the worker may use
  // Of these each rank gets its own, if there are enough for all; empty: ranks run wherever the kernel wants.
  std::vector<int> own_cpus;
  bool root = false;        // mpirun wants to be told
  bool single_copy = true;  // ranks may read each other's memory (CMA)
};

struct LaunchPlan {
  std::vector<Command> commands;
  std::string tag;  // Job::tag
  // Program that starts the ranks, commands[0]: "mpirun" or "srun"; empty: the commands are the ranks.
  std::string launcher;
  // Node of each rank, a line each; to be written to SLURM_HOSTFILE, <directory>/hosts. Empty: not needed.
  std::string hosts;
};

// Of the worker's environment, what its ranks get: not the traces of a surrounding MPI or Slurm step, which
// would make theirs believe that it is a part of it (of Slurm's variables only what names the job stays), and
// not our own variables, the secret among them.
std::vector<std::string> InheritedEnvironment(const std::vector<std::string>& environment);

// The processes that the launching node, the attempt's first one, starts. FAILED_PRECONDITION: the attempt
// spans several nodes and mpirun serves one.
absl::StatusOr<LaunchPlan> PlanLaunch(const v1::SynchronizeResponse::DesiredAttempt& attempt,
                                      const RankProgram& program, const LaunchHost& host);

// Ranks of the attempt on the node in this place of its list: first and how many.
struct RankRange {
  int first = 0;
  int count = 0;
};
RankRange RanksOn(const v1::SynchronizeResponse::DesiredAttempt& attempt, int place);

}  // namespace scalelab::worker
