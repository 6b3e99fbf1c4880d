#include "server/scheduler/slurm_script.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace scalelab::server {
namespace {

// Removes the secret from the environment of the batch shell, see kBody.
constexpr absl::string_view kHideSecret = R"(
# Ranks can read the environment that this shell was started with. So put the secret into a pipe and start this
# script again without it.
if [ -n "${SCALELAB_ALLOCATION_SECRET-}" ]; then
  exec 3< <(printf '%s\n' "$SCALELAB_ALLOCATION_SECRET")
  wait "$!" 2>/dev/null || true
  unset SCALELAB_ALLOCATION_SECRET
  exec "$BASH" "$0"
fi
)";

// Starts one worker on each node and waits for all of them. srun numbers the nodes in the order of the ranks.
constexpr absl::string_view kBody = R"(
# The worker step ignores the task layout above: it uses whole nodes and shares them with the ranks' steps.
unset SLURM_CPUS_PER_TASK SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_NTASKS SLURM_NPROCS \
  SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK \
  SLURM_DISTRIBUTION

# Runs on each node. The worker reads the secret from its standard input. The lock prevents a second worker of this
# allocation on the node, so it is a local file.
start_worker='
  token=$1
  shift
  directory="/tmp/scalelab-$UID"
  mkdir -p -m 700 "$directory" && [ -O "$directory" ] && [ ! -L "$directory" ] || {
    echo "scalelab: $directory on $SLURMD_NODENAME is not a directory of this user; remove it" >&2
    exit 1
  }
  find "$directory" -maxdepth 1 -name "*.lock" -mtime +2 -exec flock --nonblock {} rm {} \;
  exec "$@" --node "$SLURMD_NODENAME" --node-index "$SLURM_NODEID" \
    --lock "$directory/$token-$SLURM_NODEID.lock"
'
srun --overlap --whole --mpi=none --cpu-bind=none --export=ALL --input=all \
  --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --kill-on-bad-exit=1 --wait=0 \
  bash -c "$start_worker" start_worker "$token" "${worker[@]}" <&3 3<&- &
step=$!
exec 3<&-

# Slurm sends SIGTERM shortly before the time limit, at a preemption and when the job is cancelled. Ask the workers to end, and
# wait for them. The srun of the ranks gets the signal too: it would kill the ranks at SIGTERM, but passes SIGUSR1 on to them.
trap 'scancel --signal=USR1 "$SLURM_JOB_ID.0" || kill -USR1 "$step" 2>/dev/null' TERM
while kill -0 "$step" 2>/dev/null; do
  wait "$step"
done
wait "$step"
exit $?
)";

// Quotes a value for a #SBATCH line. sbatch parses quotes there as a shell does.
std::string Quoted(absl::string_view value) {
  return absl::StrCat("\"", absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

std::string ShellQuoted(absl::string_view value) {
  return absl::StrCat("'", absl::StrReplaceAll(value, {{"'", "'\\''"}}), "'");
}

// Returns the worker's option in base64, because PEM has several lines.
std::string CertificateOption(const SlurmScriptOptions& options) {
  if (options.server_certificate.empty()) return "";
  return absl::StrCat(" --certificate ", ShellQuoted(absl::Base64Escape(options.server_certificate)));
}

// Replaces line breaks, which would end the #SBATCH line and start a command.
std::string OneLine(absl::string_view value) {
  return absl::StrReplaceAll(value, {{"\n", " "}, {"\r", " "}, {absl::string_view("\0", 1), " "}});
}

// Rounds up, because Slurm counts limits in minutes.
absl::Duration WholeMinutes(absl::Duration limit) {
  return std::max(absl::Minutes(1), absl::Ceil(limit, absl::Minutes(1)));
}

// Returns the nodes that the coordinator excludes, together with those that the site or the study excludes. sbatch uses
// only the last option of a name. Empty if the coordinator excludes none, or if the study names the nodes that it needs.
std::string ExcludedNodes(const SlurmScriptOptions& options, const JobRequest& request) {
  if (request.excluded_nodes.empty()) return "";
  std::string given;
  for (const auto* list : {&options.site_options, &request.options}) {
    for (const auto& [name, value] : *list) {
      if (name == "nodelist" || name == "nodefile") return "";
      if (name == "exclude") given = value;
    }
  }
  return absl::StrCat(given, given.empty() ? "" : ",", absl::StrJoin(request.excluded_nodes, ","));
}

std::string TimeLimitText(absl::Duration limit) {
  const int64_t minutes = absl::ToInt64Minutes(limit);
  return absl::StrFormat("%d-%02d:%02d:00", minutes / 1440, minutes / 60 % 24, minutes % 60);
}

}  // namespace

std::string AllocationDirectory(const SlurmScriptOptions& options, const std::string& token) {
  return absl::StrCat(options.runs_dir, "/allocations/", token);
}

std::string SlurmScript(const SlurmScriptOptions& options, const JobRequest& request) {
  std::string script = "#!/bin/bash\n";
  const auto add = [&](absl::string_view name, absl::string_view value) {
    absl::StrAppend(&script, "#SBATCH --", name);
    if (value.empty()) return absl::StrAppend(&script, "\n");
    const bool plain = value.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                           "-_./:,=+@%") == absl::string_view::npos;
    absl::StrAppend(&script, "=", plain ? std::string(value) : Quoted(OneLine(value)), "\n");
  };
  const std::string directory = AllocationDirectory(options, request.token);
  add("comment", OneLine("scalelab " + request.study));
  add("nodes", absl::StrCat(request.nodes));
  add("ntasks-per-node", absl::StrCat(request.ranks_per_node));
  add("cpus-per-task", absl::StrCat(request.cpus_per_rank));
  if (const int64_t gpus = int64_t{request.ranks_per_node} * request.gpus_per_rank; gpus > 0)
    add("gres", absl::StrCat("gpu:", gpus));
  if (request.memory_mib > 0) add("mem", absl::StrCat(request.memory_mib, "M"));
  const absl::Duration limit = WholeMinutes(request.time_limit);
  add("time", TimeLimitText(limit));
  if (!request.partition.empty()) add("partition", request.partition);
  if (request.exclusive) add("exclusive", "");
  add("signal", absl::StrCat("B:TERM@", absl::ToInt64Seconds(WarningBeforeEnd(limit))));
  add("open-mode", "append");
  add("chdir", directory);
  add("output", absl::StrReplaceAll(directory, {{"%", "%%"}}) + "/job.out");
  const std::string excluded = ExcludedNodes(options, request);
  if (!excluded.empty()) add("exclude", excluded);
  for (const auto* given : {&options.site_options, &request.options}) {
    for (const auto& [name, value] : *given) {
      if (name != "exclude" || excluded.empty()) add(name, value);
    }
  }
  absl::StrAppend(&script, kHideSecret, "\ntoken=", ShellQuoted(request.token), "\nworker=(",
                  ShellQuoted(options.worker_program), " --server ", ShellQuoted(options.server_address),
                  " --launcher srun --allocation \"$token\"", CertificateOption(options), ")\n",
                  kBody.substr(1));
  return script;
}

}  // namespace scalelab::server
