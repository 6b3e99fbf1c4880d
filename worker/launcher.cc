#include "worker/launcher.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "catalog/rank_variables.h"
#include "worker/own_parameters.h"

namespace scalelab::worker {
namespace {

using Desired = v1::SynchronizeResponse::DesiredAttempt;

// The variable of Open MPI with the way in which ranks of a node copy large messages.
constexpr char kSingleCopy[] = "OMPI_MCA_btl_vader_single_copy_mechanism";

absl::string_view NameOf(absl::string_view entry) { return entry.substr(0, entry.find('=')); }

void Set(std::vector<std::string>* environment, absl::string_view name, absl::string_view value) {
  std::erase_if(*environment, [&](const std::string& entry) { return NameOf(entry) == name; });
  environment->push_back(absl::StrCat(name, "=", value));
}

bool Contains(const std::vector<std::string>& environment, absl::string_view name) {
  return std::ranges::any_of(environment, [&](const std::string& entry) { return NameOf(entry) == name; });
}

// The number of processes to start, and the ranks that each of them serves (for its cores and GPUs).
int ProcessCount(const Desired& attempt, const RankProgram& program) {
  return program.one_process ? 1 : attempt.spec().ranks();
}
int RanksIn(const Desired& attempt, const RankProgram& program) {
  return program.one_process ? attempt.spec().ranks() : 1;
}

// Sets the variables of a rank that is started without a launcher; scalelab-rank sets the same ones
// for the others.
void SetRank(std::vector<std::string>* environment, const Desired& attempt, const RankProgram& program,
             int rank) {
  Set(environment, "RANK", absl::StrCat(rank));
  Set(environment, "LOCAL_RANK", absl::StrCat(rank));
  Set(environment, "WORLD_SIZE", absl::StrCat(attempt.spec().ranks()));
  Set(environment, "SCALELAB_EVENTS", absl::StrCat(attempt.directory(), "/events-", rank, ".jsonl"));
  if (program.launcher.empty()) return;
  Set(environment, "LOCAL_WORLD_SIZE", absl::StrCat(attempt.spec().ranks()));
  Set(environment, "GROUP_RANK", "0");
  Set(environment, "GROUP_WORLD_SIZE", "1");
  Set(environment, "ROLE_RANK", absl::StrCat(rank));
  Set(environment, "ROLE_WORLD_SIZE", absl::StrCat(attempt.spec().ranks()));
  Set(environment, "ROLE_NAME", "default");
}

// Sets the variables that torchrun sets in the same way for all ranks, and that a program started by
// another launcher would lack. TORCHELASTIC_USE_AGENT_STORE stays unset: torchrun sets it if its own
// process serves the store, to which all ranks connect. Here rank 0 serves it.
void SetElastic(std::vector<std::string>* environment, const Desired& attempt) {
  const std::string& name = attempt.run().empty() ? attempt.token() : attempt.run();
  Set(environment, "TORCHELASTIC_RUN_ID", absl::StrReplaceAll(name, {{"/", "-"}}));
  Set(environment, "TORCHELASTIC_RESTART_COUNT", absl::StrCat(attempt.earlier_attempts()));
  Set(environment, "TORCHELASTIC_MAX_RESTARTS", absl::StrCat(attempt.max_retries()));
}

// Returns the cores of `count` ranks of the node, from local rank `place` on; empty if the node has too few
// to pin all ranks.
std::vector<int> CpusOf(const Desired& attempt, const LaunchHost& host, int place, int count = 1) {
  const size_t each = std::max(1, attempt.spec().cpus_per_rank());
  if (host.own_cpus.size() < each * RanksOn(attempt, 0).count) return {};
  const auto first = host.own_cpus.begin() + static_cast<ptrdiff_t>(place * each);
  return {first, first + static_cast<ptrdiff_t>(count * each)};
}

// Returns the cores of all local ranks, "0,1/2,3". scalelab-rank selects its part, because the MPI launcher
// decides which rank a process is.
std::string CpusOfAll(const Desired& attempt, const LaunchHost& host) {
  std::vector<std::string> places;
  for (int place = 0; place < RanksOn(attempt, 0).count; ++place)
    places.push_back(absl::StrJoin(CpusOf(attempt, host, place), ","));
  return absl::StrJoin(places, "/");
}

Command DirectRank(const Desired& attempt, const RankProgram& program, std::vector<std::string> environment,
                   const LaunchHost& host, int rank) {
  SetRank(&environment, attempt, program, rank);
  const std::string output = absl::StrCat(attempt.directory(), "/rank-", rank);
  return {program.argv,    std::move(environment), attempt.directory(),
          output + ".out", output + ".err",        CpusOf(attempt, host, rank, RanksIn(attempt, program))};
}

Command Mpirun(const Desired& attempt, const RankProgram& program, std::vector<std::string> environment,
               const LaunchHost& host) {
  std::vector<std::string> argv{host.mpirun, "-np", absl::StrCat(attempt.spec().ranks()),
                                // The coordinator has counted the slots, and this machine is the only node.
                                "--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated"};
  if (host.root) argv.push_back("--allow-run-as-root");
  // When a rank dies or SIGTERM arrives, mpirun waits this many seconds before it sends SIGTERM to the
  // ranks, and again before it kills them, even if no rank is left. The default of 1 is too short for a
  // checkpoint. The ranks get SIGTERM from the worker as well, so they have twice this time, which equals
  // Slurm's default (KillWait).
  if (!attempt.checkpoint_directory().empty())
    argv.insert(argv.end(), {"--mca", "odls_base_sigkill_timeout", "15"});
  // Set a variable instead of passing an option, because an option would override the variable that
  // the study sets.
  if (!Contains(environment, "OMPI_MCA_btl")) argv.insert(argv.end(), {"--mca", "btl", "self,vader"});
  if (!host.single_copy && !Contains(environment, kSingleCopy))
    argv.insert(argv.end(), {"--mca", "btl_vader_single_copy_mechanism", "none"});
  argv.push_back(host.rank_program);
  argv.insert(argv.end(), program.argv.begin(), program.argv.end());
  return {std::move(argv), std::move(environment), attempt.directory(), attempt.directory() + "/launcher.out",
          attempt.directory() + "/launcher.err"};
}

// Returns the command that starts the ranks of one node with PyTorch's launcher. On several nodes, scalelab-rank --node sets
// PET_NODE_RANK and PET_NPROC_PER_NODE, which torchrun reads in place of its options.
std::vector<std::string> Torchrun(const Desired& attempt, const RankProgram& program,
                                  const LaunchHost& host) {
  const auto variable = [&program](absl::string_view name) {
    for (const auto& [of, value] : program.environment) {
      if (of == name) return value;
    }
    return std::string();
  };
  // Use the torchrun of the Python that runs the script.
  const std::string& python = program.argv.front();
  const absl::string_view file = absl::string_view(python).substr(python.rfind('/') + 1);
  std::vector<std::string> argv{"torchrun"};
  if (absl::StartsWith(file, "python")) argv = {python, "-m", "torch.distributed.run"};
  argv.push_back(absl::StrCat("--nnodes=", std::max(1, attempt.nodes_size())));
  if (attempt.nodes_size() <= 1) argv.push_back(absl::StrCat("--nproc_per_node=", attempt.spec().ranks()));
  argv.insert(argv.end(), {"--max_restarts=0", "--master_addr=" + variable("MASTER_ADDR"),
                           "--master_port=" + variable("MASTER_PORT"), "--no_python", host.rank_program});
  argv.insert(argv.end(), program.argv.begin(), program.argv.end());
  return argv;
}

// Starts one step of the job, on exactly the nodes that the coordinator chose; ranks fill them one after
// another. --overlap, because the worker's own step holds the same CPUs and GPUs. No --mem: a restarted
// controller (Slurm 22.05) forgets that steps with --mem overlap. When one rank dies, srun ends the others.
Command Srun(const Desired& attempt, const RankProgram& program, std::vector<std::string> environment,
             const LaunchHost& host, std::string* hosts) {
  const v1::RunSpec& spec = attempt.spec();
  const bool torchrun =
      program.launcher == "torchrun";  // one process on each node, which starts the ranks there
  const int cores =
      std::max(1, spec.cpus_per_rank()) * (torchrun ? RanksOn(attempt, 0).count : RanksIn(attempt, program));
  int largest = 0;
  for (int place = 0; place < attempt.nodes_size(); ++place) {
    const RankRange ranks = RanksOn(attempt, place);
    largest = std::max(largest, ranks.count);
    const int processes = program.one_process || torchrun ? 1 : ranks.count;
    for (int i = 0; i < processes; ++i) absl::StrAppend(hosts, attempt.nodes(place), "\n");
  }
  Set(&environment, "SLURM_HOSTFILE", attempt.directory() + "/hosts");
  if (!host.single_copy && !Contains(environment, kSingleCopy)) Set(&environment, kSingleCopy, "none");
  // MPI_Init ends with a barrier ("fence") that Slurm's PMIx plugin executes, by default along a tree of the nodes. Where
  // slurm.conf sets TreeWidth to 65533, which Slurm recommends for clusters with cloud nodes, the plugin of Slurm 22.05
  // computes a tree of one node, and the fence waits for no other node. A rank then receives a message while it is
  // still in MPI_Init, and crashes. The ring algorithm does not depend on TreeWidth.
  if (program.rendezvous == Rendezvous::kMpi && !Contains(environment, "SLURM_PMIX_FENCE"))
    Set(&environment, "SLURM_PMIX_FENCE", "ring");
  std::vector<std::string> argv{
      host.srun, "--overlap", absl::StrCat("--nodes=", attempt.nodes_size()),
      absl::StrCat("--ntasks=", torchrun ? attempt.nodes_size() : ProcessCount(attempt, program)),
      "--distribution=arbitrary", absl::StrCat("--cpus-per-task=", cores),
      // Pins each rank to its own cores, where the site's task plugin supports that.
      "--cpu-bind=cores",
      // Without a limit, srun would wait forever for resources that a step of this job should get at once.
      "--immediate=60", "--kill-on-bad-exit=1", "--input=none", "--export=ALL",
      "--chdir=" + attempt.directory()};
  if (program.launcher != "srun")  // launcher srun: the MPI type of the site
    argv.insert(argv.begin() + 2, program.rendezvous == Rendezvous::kMpi ? "--mpi=pmix" : "--mpi=none");
  // All GPUs of a node are visible to every rank there, as NCCL requires; a rank uses the one whose index is
  // its local rank. srun makes all GPUs visible if no binding is set; with --gpu-bind=none (22.05) it hides
  // them if there are two ranks or more.
  if (spec.gpus_per_rank() > 0) argv.push_back(absl::StrCat("--gres=gpu:", largest * spec.gpus_per_rank()));
  argv.push_back(host.rank_program);
  if (torchrun) argv.push_back("--node");
  const std::vector<std::string> started = torchrun ? Torchrun(attempt, program, host) : program.argv;
  argv.insert(argv.end(), started.begin(), started.end());
  return {std::move(argv), std::move(environment), attempt.directory(), attempt.directory() + "/launcher.out",
          attempt.directory() + "/launcher.err"};
}

}  // namespace

std::vector<std::string> InheritedEnvironment(const std::vector<std::string>& environment) {
  const bool inside_mpi = Contains(environment, "OMPI_COMM_WORLD_RANK") || Contains(environment, "PMIX_RANK");
  std::vector<std::string> kept;
  for (const std::string& entry : environment) {
    const absl::string_view name = NameOf(entry);
    const bool setting = absl::StartsWith(name, "OMPI_MCA_") || absl::StartsWith(name, "PMIX_MCA_");
    constexpr absl::string_view kTraces[] = {"PMIX_",  "PMI_",  "OMPI_",   "ORTE_",
                                             "SLURM_", "SRUN_", "SBATCH_", "SCALELAB_"};
    constexpr absl::string_view kJob[] = {"SLURM_CONF",         "SLURM_JOB_ID",        "SLURM_JOBID",
                                          "SLURM_JOB_NODELIST", "SLURM_JOB_PARTITION", "SLURM_CLUSTER_NAME"};
    const bool trace =
        std::ranges::any_of(kTraces, [&](absl::string_view p) { return absl::StartsWith(name, p); }) &&
        std::ranges::find(kJob, name) == std::end(kJob);
    if ((!trace || (setting && !inside_mpi)) && !IsRankVariable(name)) kept.push_back(entry);
  }
  return kept;
}

absl::StatusOr<LaunchPlan> PlanLaunch(const Desired& attempt, const RankProgram& program,
                                      const LaunchHost& host) {
  const v1::RunSpec& spec = attempt.spec();
  const bool slurm = host.launcher == Launcher::kSrun;
  if (attempt.nodes_size() > 1 && !slurm) {
    return absl::FailedPreconditionError(
        absl::StrCat("The attempt spans ", attempt.nodes_size(),
                     " nodes, but the mpirun launcher supports only one; set "
                     "resources.ranks_per_node so that all ranks fit on one node, or run on Slurm."));
  }
  if (spec.ranks() < 1) return absl::InvalidArgumentError("The attempt has no ranks.");
  if (program.one_process && attempt.nodes_size() > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Engine ", spec.engine(), " runs all ", spec.ranks(), " ranks in one process, but the attempt has ",
        attempt.nodes_size(), " nodes; set resources.ranks_per_node to ", spec.ranks(), "."));
  }
  if (program.launcher == "srun" && !slurm) {
    return absl::FailedPreconditionError(
        "Launcher srun needs Slurm; use launcher mpirun for an MPI program, or plain.");
  }
  std::vector<std::string> environment = host.environment;
  for (const auto& [name, value] : OwnVariables(spec)) Set(&environment, name, value);
  const int cores = std::max(1, spec.cpus_per_rank());
  LaunchPlan plan;
  plan.tag = absl::StrCat(kAttemptTag, "=", attempt.token());
  environment.push_back(plan.tag);
  Set(&environment, "SCALELAB_ATTEMPT_DIR", attempt.directory());
  Set(&environment, "SCALELAB_SPEC", attempt.directory() + "/spec.json");
  if (!attempt.checkpoint_directory().empty())
    Set(&environment, "SCALELAB_CHECKPOINT_DIR", attempt.checkpoint_directory());
  if (!spec.env().fields().contains(std::string("OMP_NUM_THREADS")))
    Set(&environment, "OMP_NUM_THREADS", absl::StrCat(cores * RanksIn(attempt, program)));
  if (program.one_process) Set(&environment, "SCALELAB_REPLICAS", absl::StrCat(spec.ranks()));
  for (const auto& [name, value] : program.environment) Set(&environment, name, value);
  for (const auto& [name, value] : program.defaults) {
    if (!Contains(environment, name)) Set(&environment, name, value);
  }
  if (!program.launcher.empty()) {
    Set(&environment, "SCALELAB_LAUNCHER", program.launcher);
    Set(&environment, "SCALELAB_RANKS", absl::StrCat(spec.ranks()));
    Set(&environment, "SCALELAB_RANKS_PER_NODE", absl::StrCat(RanksOn(attempt, 0).count));
    if (program.launcher != "torchrun") SetElastic(&environment, attempt);
  }

  // With more ranks than cores, a waiting rank must yield its core, or each step takes a scheduler tick.
  if (program.rendezvous == Rendezvous::kMpi && RanksOn(attempt, 0).count * cores > host.cpus &&
      !Contains(environment, "OMPI_MCA_mpi_yield_when_idle")) {
    Set(&environment, "OMPI_MCA_mpi_yield_when_idle", "1");
  }
  if (slurm) {
    plan.launcher = "srun";
    plan.commands.push_back(Srun(attempt, program, std::move(environment), host, &plan.hosts));
    return plan;
  }
  if (program.launcher == "torchrun") {
    plan.launcher = "torchrun";
    if (!CpusOf(attempt, host, 0).empty()) Set(&environment, kRankCpus, CpusOfAll(attempt, host));
    plan.commands.push_back({Torchrun(attempt, program, host), std::move(environment), attempt.directory(),
                             attempt.directory() + "/launcher.out", attempt.directory() + "/launcher.err"});
    return plan;
  }
  if (program.rendezvous == Rendezvous::kMpi && (spec.ranks() > 1 || !program.launcher.empty())) {
    plan.launcher = "mpirun";
    if (!CpusOf(attempt, host, 0).empty()) Set(&environment, kRankCpus, CpusOfAll(attempt, host));
    plan.commands.push_back(Mpirun(attempt, program, std::move(environment), host));
    return plan;
  }
  for (int rank = 0; rank < ProcessCount(attempt, program); ++rank) {
    plan.commands.push_back(DirectRank(attempt, program, environment, host, rank));
  }
  return plan;
}

RankRange RanksOn(const Desired& attempt, int place) {
  const int ranks = attempt.spec().ranks();
  if (place < 0) return {0, 0};
  if (attempt.nodes_size() <= 1 || attempt.ranks_per_node() <= 0) return {0, ranks};
  const int first = std::min(ranks, place * attempt.ranks_per_node());
  return {first, std::min(attempt.ranks_per_node(), ranks - first)};
}

}  // namespace scalelab::worker
