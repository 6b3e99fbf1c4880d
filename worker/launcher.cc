#include "worker/launcher.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace scalelab::worker {
namespace {

using Desired = v1::SynchronizeResponse::DesiredAttempt;

absl::string_view NameOf(absl::string_view entry) { return entry.substr(0, entry.find('=')); }

void Set(std::vector<std::string>* environment, absl::string_view name, absl::string_view value) {
  std::erase_if(*environment, [&](const std::string& entry) { return NameOf(entry) == name; });
  environment->push_back(absl::StrCat(name, "=", value));
}

// What a rank that no launcher starts finds in its environment; scalelab-rank sets the same for the others.
void SetRank(std::vector<std::string>* environment, const Desired& attempt, int rank) {
  Set(environment, "RANK", absl::StrCat(rank));
  Set(environment, "LOCAL_RANK", absl::StrCat(rank));
  Set(environment, "WORLD_SIZE", absl::StrCat(attempt.spec().ranks()));
  Set(environment, "SCALELAB_EVENTS", absl::StrCat(attempt.directory(), "/events-", rank, ".jsonl"));
}

Command DirectRank(const Desired& attempt, const RankProgram& program, std::vector<std::string> environment,
                   int rank) {
  SetRank(&environment, attempt, rank);
  const std::string output = absl::StrCat(attempt.directory(), "/rank-", rank);
  return {program.argv, std::move(environment), attempt.directory(), output + ".out", output + ".err"};
}

Command Mpirun(const Desired& attempt, const RankProgram& program, std::vector<std::string> environment,
               const LaunchHost& host) {
  std::vector<std::string> argv{host.mpirun, "-np", absl::StrCat(attempt.spec().ranks()),
                                // Slots were counted by the coordinator; this machine is the only one.
                                "--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated"};
  if (host.root) argv.push_back("--allow-run-as-root");
  argv.insert(argv.end(), {"--mca", "btl", "self,vader"});
  if (!host.single_copy) argv.insert(argv.end(), {"--mca", "btl_vader_single_copy_mechanism", "none"});
  argv.push_back(host.rank_program);
  argv.insert(argv.end(), program.argv.begin(), program.argv.end());
  return {std::move(argv), std::move(environment), attempt.directory(), attempt.directory() + "/launcher.out",
          attempt.directory() + "/launcher.err"};
}

}  // namespace

std::vector<std::string> InheritedEnvironment(const std::vector<std::string>& environment) {
  std::vector<std::string> kept;
  for (const std::string& entry : environment) {
    const absl::string_view name = NameOf(entry);
    bool drop = false;
    for (absl::string_view prefix :
         {"PMIX_", "PMI_", "OMPI_", "ORTE_", "SLURM_STEP", "SLURM_TASK", "SCALELAB_"}) {
      drop = drop || absl::StartsWith(name, prefix);
    }
    for (absl::string_view exact :
         {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_NTASKS", "SLURM_NPROCS",
          "SLURM_NNODES", "RANK", "LOCAL_RANK", "WORLD_SIZE"}) {
      drop = drop || name == exact;
    }
    if (!drop) kept.push_back(entry);
  }
  return kept;
}

absl::StatusOr<LaunchPlan> PlanLaunch(const Desired& attempt, const RankProgram& program,
                                      const LaunchHost& host) {
  const v1::RunSpec& spec = attempt.spec();
  if (attempt.nodes_size() > 1) {
    return absl::UnimplementedError(absl::StrCat("The attempt spans ", attempt.nodes_size(),
                                                 " nodes, and this worker launches on one node only; choose "
                                                 "resources.ranks_per_node so that all ranks fit on one."));
  }
  if (spec.ranks() < 1) return absl::InvalidArgumentError("The attempt has no ranks.");
  std::vector<std::string> environment = host.environment;
  const int cores = std::max(1, spec.cpus_per_rank());
  LaunchPlan plan;
  plan.tag = absl::StrCat("SCALELAB_ATTEMPT=", attempt.token());
  environment.push_back(plan.tag);
  Set(&environment, "SCALELAB_ATTEMPT_DIR", attempt.directory());
  Set(&environment, "SCALELAB_SPEC", attempt.directory() + "/spec.json");
  Set(&environment, "OMP_NUM_THREADS", absl::StrCat(cores));
  for (const auto& [name, value] : program.environment) Set(&environment, name, value);

  if (program.rendezvous == Rendezvous::kMpi && spec.ranks() > 1) {
    // More ranks than cores: a rank that waits must give its core away, or steps take a scheduler tick each.
    if (spec.ranks() * cores > host.cpus) Set(&environment, "OMPI_MCA_mpi_yield_when_idle", "1");
    plan.through_mpi = true;
    plan.commands.push_back(Mpirun(attempt, program, std::move(environment), host));
    return plan;
  }
  for (int rank = 0; rank < spec.ranks(); ++rank) {
    plan.commands.push_back(DirectRank(attempt, program, environment, rank));
  }
  return plan;
}

RankRange RanksOn(const Desired& attempt, int place) {
  const int ranks = attempt.spec().ranks();
  if (attempt.nodes_size() <= 1 || attempt.ranks_per_node() <= 0) return {0, ranks};
  const int first = std::min(ranks, place * attempt.ranks_per_node());
  return {first, std::min(attempt.ranks_per_node(), ranks - first)};
}

}  // namespace scalelab::worker
