// Slurm's states and reasons in this project's words; docs/operators/slurm.md has the same table for people.
#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/scheduler/slurm_queue.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;

struct StateWord {
  absl::string_view word;
  State state;
  absl::string_view reason;  // empty: see StatusOf
};

constexpr StateWord kStates[] = {
    {"PENDING", State::kPending, ""},
    {"CONFIGURING", State::kPending, "its nodes are being made ready (CONFIGURING)"},
    {"REQUEUED", State::kPending, "it was put back into the queue (REQUEUED)"},
    {"REQUEUE_HOLD", State::kPending,
     "it was put back and is held; scontrol release lets it go (REQUEUE_HOLD)"},
    {"REQUEUE_FED", State::kPending, "it was put back into the federation's queue (REQUEUE_FED)"},
    {"SPECIAL_EXIT", State::kPending, "it was put back and is held for a look at it (SPECIAL_EXIT)"},
    {"RESV_DEL_HOLD", State::kPending, "its reservation was deleted and it is held (RESV_DEL_HOLD)"},
    {"RUNNING", State::kRunning, ""},
    // Not over: its processes may still live, and its nodes are not free.
    {"COMPLETING", State::kRunning, "it is ending; Slurm waits for its last processes (COMPLETING)"},
    {"SUSPENDED", State::kRunning,
     "it is suspended by an administrator or a job that goes first (SUSPENDED)"},
    {"STOPPED", State::kRunning, "it is stopped and keeps its nodes (STOPPED)"},
    {"SIGNALING", State::kRunning, "it is being signalled (SIGNALING)"},
    {"RESIZING", State::kRunning, "its size is being changed (RESIZING)"},
    {"STAGE_OUT", State::kRunning, "its burst buffer is being written back (STAGE_OUT)"},
    {"COMPLETED", State::kCompleted, "its workers exited by themselves"},
    {"FAILED", State::kFailed, ""},
    {"CANCELLED", State::kCancelled, ""},
    {"REVOKED", State::kCancelled, "another cluster of the federation took it (REVOKED)"},
    {"TIMEOUT", State::kTimeout, ""},
    {"PREEMPTED", State::kPreempted, "a job that goes first took its nodes (PREEMPTED)"},
    {"NODE_FAIL", State::kNodeFail, "a node failed (NODE_FAIL)"},
    {"OUT_OF_MEMORY", State::kOutOfMemory,
     "it used more memory than it had asked for; raise resources.memory_mib (OUT_OF_MEMORY)"},
    {"BOOT_FAIL", State::kBootFail, "a node could not be started (BOOT_FAIL)"},
    {"DEADLINE", State::kDeadline, "its deadline passed (DEADLINE)"},
};

struct ReasonWords {
  absl::string_view code;  // one '*' stands for anything
  absl::string_view words;
};

// The first match counts.
constexpr ReasonWords kReasons[] = {
    {"Resources", "waits for free resources, and is next"},
    {"Priority", "waits behind jobs of higher priority"},
    {"None", "waits for Slurm's next look at the queue"},
    {"Dependency", "waits for the end of an earlier job of the same name"},
    {"DependencyNeverSatisfied", "waits for a job that will never end as asked; cancel it"},
    {"BeginTime", "waits for its begin time"},
    {"Reservation", "waits for its reservation"},
    {"ReservationDeleted", "its reservation was deleted"},
    {"Licenses", "waits for licenses"},
    {"ReqNodeNotAvail", "waits for nodes that are down, drained or reserved"},
    {"NodeDown", "waits for a node that is down"},
    // "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    {"Nodes*", "waits for nodes that are down, drained or reserved"},
    {"PartitionNodeLimit", "asks for more nodes than its partition gives; it starts only if that is changed"},
    {"PartitionTimeLimit",
     "asks for more time than its partition gives, and will not start; shorten resources.time"},
    {"PartitionConfig", "asks for what no node of its partition has, and will not start; ask for less"},
    {"PartitionDown", "waits for its partition, which is down"},
    {"PartitionInactive", "waits for its partition, which is inactive"},
    {"BadConstraints", "asks for what no node has, and will not start; change resources or sbatch_options"},
    {"JobHeldAdmin", "is held by an administrator"},
    {"JobHeldUser", "is held; scontrol release lets it go"},
    {"JobHoldMaxRequeue", "is held, it was put back too often"},
    {"JobArrayTaskLimit", "waits for other tasks of its array"},
    {"JobLaunchFailure", "could not be launched; an administrator should look at the node"},
    {"launch_failed_requeued_held", "could not be launched and is held; an administrator should look"},
    {"Prolog", "waits for the end of the site's prolog"},
    {"Cleaning", "waits until its nodes are cleaned up"},
    {"BurstBuffer*", "waits for its burst buffer"},
    {"Power*", "waits for power"},
    {"SchedDefer", "waits for Slurm's next full look at the queue"},
    {"InvalidAccount", "its account is not valid; change sbatch_options.account"},
    {"InvalidQOS", "its QOS is not valid; change sbatch_options.qos"},
    {"QOSNotAllowed", "its partition does not take this QOS; change sbatch_options.qos"},
    {"AccountNotAllowed", "its partition does not take this account; change sbatch_options.account"},
    {"FedJobLock", "waits for another cluster of the federation"},
    // More than one job may have, whatever else runs. A job that is accepted all the same waits for ever.
    {"QOSMaxWallDurationPerJobLimit",
     "asks for more time than its QOS gives one job; it starts only if that is changed"},
    {"AssocMaxWallDurationPerJobLimit",
     "asks for more time than its account gives one job; it starts only if that is changed"},
    {"QOSMax*PerJobLimit", "asks for more than its QOS gives one job; it starts only if that is changed"},
    {"QOSMax*PerJob", "asks for more than its QOS gives one job; it starts only if that is changed"},
    {"QOSMax*PerNode", "asks for more of a node than its QOS gives; it starts only if that is changed"},
    {"QOSMin*", "asks for less than its QOS takes; it starts only if that is changed"},
    {"AssocMax*PerJobLimit",
     "asks for more than its account gives one job; it starts only if that is changed"},
    {"AssocMax*PerJob", "asks for more than its account gives one job; it starts only if that is changed"},
    {"AssocMax*PerNode", "asks for more of a node than its account gives; it starts only if that is changed"},
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

std::string Clock(absl::Duration duration) {
  const int64_t seconds = absl::ToInt64Seconds(duration);
  return absl::StrFormat("%d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

std::string FailedReason(const QueueRow& row) {
  if (absl::StrContains(row.reason, "JobLaunchFailure"))
    return absl::StrCat("Slurm could not launch it (", row.reason, ")");
  if (row.signal != 0) return absl::StrCat("its script was ended by signal ", row.signal);
  if (row.exit_code == 126 || row.exit_code == 127) {
    return absl::StrCat("its workers could not be started (status ", row.exit_code,
                        "); does every node see the worker program?");
  }
  return absl::StrCat("its workers ended with status ", row.exit_code);
}

std::string CancelledReason(const QueueRow& row, Canceller canceller) {
  if (canceller == Canceller::kUs) return "cancelled by this service";
  if (!row.by.empty()) return absl::StrCat("cancelled by user id ", row.by);
  return canceller == Canceller::kUnknown ? "cancelled"
                                          : "cancelled from outside: by an administrator, or with scancel";
}

}  // namespace

bool IsLive(const QueueRow& row) {
  const std::optional<JobStatus> status = StatusOf(row);
  return !status || !IsOver(status->state);
}

std::optional<JobStatus> StatusOf(const QueueRow& row, Canceller canceller) {
  const auto* known = std::find_if(std::begin(kStates), std::end(kStates),
                                   [&](const StateWord& word) { return word.word == row.word; });
  if (known == std::end(kStates)) return std::nullopt;
  JobStatus status;
  status.token = row.name;
  status.external_id = row.id;
  status.state = known->state;
  status.reason = std::string(known->reason);
  if (known->state == State::kRunning) status.ends_at = row.end;
  status.ending = row.word == "COMPLETING";
  if (row.word == "PENDING") status.reason = PendingReason(row.reason);
  if (row.word == "FAILED") status.reason = FailedReason(row);
  if (row.word == "CANCELLED") {
    status.reason = CancelledReason(row, canceller);
    status.from_outside = canceller == Canceller::kSomebodyElse;
  }
  // The script is warned before the limit and then ends by itself, with whatever status. Slurm looks every 30
  // s, so the warning may come that much earlier.
  const absl::Duration warned = row.limit - WarningBeforeEnd(row.limit) - absl::Seconds(35);
  const bool by_itself = row.word == "COMPLETED" || row.word == "FAILED";
  if (by_itself && row.limit != absl::InfiniteDuration() && row.used >= std::max(warned, row.limit / 2))
    status.state = State::kTimeout;
  if (status.state == State::kTimeout) {
    status.reason =
        absl::StrCat("its time limit of ", Clock(row.limit), " was reached; raise resources.time");
  }
  return status;
}

std::string PendingReason(absl::string_view reason) {
  if (reason.empty()) reason = "None";
  // "ReqNodeNotAvail, UnavailableNodes:n[1-3]"
  const absl::string_view code = reason.substr(0, reason.find_first_of(", (:"));
  absl::string_view words = "waits";
  for (const ReasonWords& known : kReasons) {
    if (Matches(code, known.code)) {
      words = known.words;
      break;
    }
  }
  return absl::StrCat(words, " (", reason, ")");
}

}  // namespace scalelab::server
