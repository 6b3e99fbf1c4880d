// Translates Slurm's job states and reasons. docs/operators/slurm.md documents the same table.
#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/scheduler/slurm_queue.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;

struct StateEntry {
  absl::string_view slurm_state;
  State state;
  absl::string_view reason;  // empty: set by StatusOf
};

constexpr StateEntry kStates[] = {
    {"PENDING", State::kPending, ""},
    {"CONFIGURING", State::kPending, "its nodes are being prepared (CONFIGURING)"},
    {"REQUEUED", State::kPending, "it was requeued (REQUEUED)"},
    {"REQUEUE_HOLD", State::kPending,
     "it was requeued and is held; release it with scontrol release (REQUEUE_HOLD)"},
    {"REQUEUE_FED", State::kPending, "it was requeued in the federation (REQUEUE_FED)"},
    {"SPECIAL_EXIT", State::kPending, "it was requeued and is held for inspection (SPECIAL_EXIT)"},
    {"RESV_DEL_HOLD", State::kPending, "its reservation was deleted and it is held (RESV_DEL_HOLD)"},
    {"RUNNING", State::kRunning, ""},
    // These states do not count as ended, because processes may still run and the nodes are not free.
    {"COMPLETING", State::kRunning, "it is ending; Slurm waits for its last processes (COMPLETING)"},
    {"SUSPENDED", State::kRunning,
     "it is suspended by an administrator or a job of higher priority (SUSPENDED)"},
    {"STOPPED", State::kRunning, "it is stopped and keeps its nodes (STOPPED)"},
    {"SIGNALING", State::kRunning, "it is being signalled (SIGNALING)"},
    {"RESIZING", State::kRunning, "it is being resized (RESIZING)"},
    {"STAGE_OUT", State::kRunning, "its burst buffer is being staged out (STAGE_OUT)"},
    {"COMPLETED", State::kCompleted, "its workers exited by themselves"},
    {"FAILED", State::kFailed, ""},
    {"CANCELLED", State::kCancelled, ""},
    {"REVOKED", State::kCancelled, "another cluster of the federation runs it (REVOKED)"},
    {"TIMEOUT", State::kTimeout, ""},
    {"PREEMPTED", State::kPreempted, "a job of higher priority took its nodes (PREEMPTED)"},
    {"NODE_FAIL", State::kNodeFail, "a node failed (NODE_FAIL)"},
    {"OUT_OF_MEMORY", State::kOutOfMemory,
     "it used more memory than it requested; raise resources.memory_mib (OUT_OF_MEMORY)"},
    {"BOOT_FAIL", State::kBootFail, "a node could not be started (BOOT_FAIL)"},
    {"DEADLINE", State::kDeadline, "its deadline passed (DEADLINE)"},
};

struct ReasonEntry {
  absl::string_view code;  // one '*' matches any text
  absl::string_view explanation;
};

// The first match is used.
constexpr ReasonEntry kReasons[] = {
    {"Resources", "waits for free resources and is next in the queue"},
    {"Priority", "waits behind jobs of higher priority"},
    {"None", "waits for Slurm's next scheduling cycle"},
    {"Dependency", "waits for the end of an earlier job of the same name"},
    {"DependencyNeverSatisfied", "waits for a job that can no longer end as required; cancel it"},
    {"BeginTime", "waits for its begin time"},
    {"Reservation", "waits for its reservation"},
    {"ReservationDeleted", "its reservation was deleted"},
    {"Licenses", "waits for licenses"},
    {"ReqNodeNotAvail", "waits for nodes that are down, drained or reserved"},
    {"NodeDown", "waits for a node that is down"},
    // "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    {"Nodes*", "waits for nodes that are down, drained or reserved"},
    {"PartitionNodeLimit",
     "requests more nodes than its partition allows; it starts only if the limit changes"},
    {"PartitionTimeLimit",
     "requests more time than its partition allows and will not start; shorten resources.time"},
    {"PartitionConfig", "requests what no node of its partition has and will not start; request less"},
    {"PartitionDown", "waits for its partition, which is down"},
    {"PartitionInactive", "waits for its partition, which is inactive"},
    {"BadConstraints", "requests what no node has and will not start; change resources or sbatch_options"},
    {"JobHeldAdmin", "is held by an administrator"},
    {"JobHeldUser", "is held; release it with scontrol release"},
    {"JobHoldMaxRequeue", "is held, because it was requeued too often"},
    {"JobArrayTaskLimit", "waits for other tasks of its array"},
    {"JobLaunchFailure", "could not be launched; an administrator must check the node"},
    {"launch_failed_requeued_held",
     "could not be launched and is held; an administrator must check the node"},
    {"Prolog", "waits for the end of the site's prolog"},
    {"Cleaning", "waits until its nodes are cleaned up"},
    {"BurstBuffer*", "waits for its burst buffer"},
    {"Power*", "waits for power"},
    {"SchedDefer", "waits for Slurm's next full scheduling cycle"},
    {"InvalidAccount", "its account is not valid; change sbatch_options.account"},
    {"InvalidQOS", "its QOS is not valid; change sbatch_options.qos"},
    {"QOSNotAllowed", "its partition does not accept this QOS; change sbatch_options.qos"},
    {"AccountNotAllowed", "its partition does not accept this account; change sbatch_options.account"},
    {"FedJobLock", "waits for another cluster of the federation"},
    // Limits for a single job, independent of other jobs. If Slurm accepted a job that exceeds such a limit,
    // the job is pending forever.
    {"QOSMaxWallDurationPerJobLimit",
     "requests more time than its QOS allows one job; it starts only if the limit changes"},
    {"AssocMaxWallDurationPerJobLimit",
     "requests more time than its account allows one job; it starts only if the limit changes"},
    {"QOSMax*PerJobLimit", "requests more than its QOS allows one job; it starts only if the limit changes"},
    {"QOSMax*PerJob", "requests more than its QOS allows one job; it starts only if the limit changes"},
    {"QOSMax*PerNode", "requests more of a node than its QOS allows; it starts only if the limit changes"},
    {"QOSMin*", "requests less than its QOS requires; it starts only if the limit changes"},
    {"AssocMax*PerJobLimit",
     "requests more than its account allows one job; it starts only if the limit changes"},
    {"AssocMax*PerJob", "requests more than its account allows one job; it starts only if the limit changes"},
    {"AssocMax*PerNode",
     "requests more of a node than its account allows; it starts only if the limit changes"},
    {"MaxJobsPerAccount", "waits for a limit on running jobs of its account"},
    {"Max*PerAccount", "waits for a limit of its account"},
    {"QOSMaxSubmit*", "waits for a limit on submitted jobs of its QOS"},
    {"QOSMaxJobs*", "waits for a limit on running jobs of its QOS"},
    {"QOSUsageThreshold", "waits for a limit on usage of its QOS"},
    {"QOSGrp*", "waits for a limit that all jobs of its QOS share"},
    {"QOS*", "waits for a limit of its QOS"},
    {"AssocMaxJobs*", "waits for a limit on running jobs of its account"},
    {"AssocGrp*", "waits for a limit that all jobs of its account share"},
    {"Assoc*", "waits for a limit of its account"},
};

bool Matches(absl::string_view code, absl::string_view pattern) {
  const size_t star = pattern.find('*');
  if (star == absl::string_view::npos) return code == pattern;
  return code.size() + 1 >= pattern.size() && absl::StartsWith(code, pattern.substr(0, star)) &&
         absl::EndsWith(code, pattern.substr(star + 1));
}

std::string FailedReason(const QueueRow& row) {
  if (absl::StrContains(row.reason, "JobLaunchFailure"))
    return absl::StrCat("Slurm could not launch it (", row.reason, ")");
  if (row.signal != 0) return absl::StrCat("its script was killed by signal ", row.signal);
  if (row.exit_code == 126 || row.exit_code == 127) {
    return absl::StrCat("its workers could not be started (status ", row.exit_code,
                        "); is the worker program visible on every node?");
  }
  return absl::StrCat("its workers ended with status ", row.exit_code);
}

std::string CancelledReason(const QueueRow& row, Canceller canceller) {
  if (canceller == Canceller::kUs) return "cancelled by this service";
  if (!row.cancelled_by.empty()) return absl::StrCat("cancelled by user id ", row.cancelled_by);
  return canceller == Canceller::kUnknown ? "cancelled"
                                          : "cancelled from outside: by an administrator, or with scancel";
}

}  // namespace

bool IsLive(const QueueRow& row) {
  const std::optional<JobStatus> status = StatusOf(row);
  return !status || !IsOver(status->state);
}

std::optional<JobStatus> StatusOf(const QueueRow& row, Canceller canceller) {
  const auto* known = std::find_if(std::begin(kStates), std::end(kStates), [&](const StateEntry& entry) {
    return entry.slurm_state == row.slurm_state;
  });
  if (known == std::end(kStates)) return std::nullopt;
  JobStatus status;
  status.token = row.name;
  status.external_id = row.id;
  status.state = known->state;
  status.reason = std::string(known->reason);
  if (known->state == State::kRunning) status.ends_at = row.end;
  status.ending = row.slurm_state == "COMPLETING";
  status.suspended = row.slurm_state == "SUSPENDED" || row.slurm_state == "STOPPED";
  if (row.slurm_state == "PENDING") status.reason = PendingReason(row.reason);
  if (row.slurm_state == "FAILED") status.reason = FailedReason(row);
  if (row.slurm_state == "CANCELLED") {
    status.reason = CancelledReason(row, canceller);
    status.from_outside = canceller == Canceller::kSomebodyElse;
  }
  // Shortly before the limit Slurm sends a warning signal, and the script exits with any status. Slurm checks
  // every 30 s, so the signal may come up to 30 s earlier.
  const absl::Duration warned_after = row.limit - WarningBeforeEnd(row.limit) - absl::Seconds(35);
  const bool by_itself = row.slurm_state == "COMPLETED" || row.slurm_state == "FAILED";
  if (by_itself && row.limit != absl::InfiniteDuration() && row.used >= std::max(warned_after, row.limit / 2))
    status.state = State::kTimeout;
  // A preemption with a grace time begins with a signal, and the script exits with any status too.
  if (by_itself && row.preempted) {
    status.state = State::kPreempted;
    status.reason = "a job of higher priority took its nodes, and it ended within the grace time";
  }
  if (status.state == State::kTimeout) status.reason = TimeLimitReason(row.limit);
  return status;
}

std::string PendingReason(absl::string_view reason) {
  if (reason.empty()) reason = "None";
  // "ReqNodeNotAvail, UnavailableNodes:n[1-3]"
  const absl::string_view code = reason.substr(0, reason.find_first_of(", (:"));
  absl::string_view explanation = "waits";
  for (const ReasonEntry& known : kReasons) {
    if (Matches(code, known.code)) {
      explanation = known.explanation;
      break;
    }
  }
  return absl::StrCat(explanation, " (", reason, ")");
}

}  // namespace scalelab::server
