// Implements the functions of Lifecycle that submit jobs to the scheduler and handle their ends.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planted/bug.h"
#include "server/core/accounting.h"
#include "server/core/backoff.h"
#include "server/core/blocks.h"
#include "server/core/job_request.h"
#include "server/core/lifecycle.h"

namespace scalelab::server {

namespace {

// The warning signal may arrive earlier than requested by this time. Slurm checks every 30 s, and prefers to
// send the signal early.
constexpr db::Micros kWarningSlack = 45'000'000;

constexpr BackoffLimits kSubmitAgain{5'000'000, 300'000'000};
constexpr BackoffLimits kCancelAgain{5'000'000, 300'000'000};
constexpr BackoffLimits kAllocateAgain{1'000'000, 300'000'000};

}  // namespace

db::Micros EndMargin(const LiveAllocation& allocation) {
  const db::Micros limit = allocation.ends_at - allocation.row.started;
  return absl::ToInt64Microseconds(WarningBeforeEnd(absl::Microseconds(limit)));
}

void Lifecycle::Plan(db::Micros now, Effects& fx) {
  if (state_.drain.on || state_.waiting.size() == 0) return;
  const CurrentUse use(state_, now);
  const auto usage = [&use](const std::string& owner) { return use.Share(owner); };
  const auto may_start = [&use](const std::string& owner, const std::string& partition) {
    return use.ReachedLimit({owner, partition}).empty() || Planted(Bug::kPendingLimitIgnored);
  };
  while (const auto next = state_.waiting.Next(usage, may_start)) {
    LiveStudy& study = *state_.study(*next);
    const std::optional<NewAllocation> made = NextAllocation(study, now);
    if (!made) {  // the clock was set back, and is now before the time of the next try
      UpdateWaiting(study, now);
      continue;
    }
    auto allocation = std::make_unique<LiveAllocation>();
    db::AllocationRow& row = allocation->row;
    row.id = ++state_.last_allocation_id;
    row.token = options_.new_token();
    row.study_id = study.row.id;
    row.run_id = made->run_id;
    row.nodes = made->shape.nodes;
    row.ranks_per_node = made->shape.ranks_per_node;
    row.cpus_per_rank = made->shape.cpus_per_rank;
    row.gpus_per_rank = made->shape.gpus_per_rank;
    row.created = now;
    allocation->generation = ++state_.last_generation;
    std::tie(row.owner, row.partition) = QueueOf(study);
    ++state_.pending[{row.owner, row.partition}];
    study.UpdateAllocation(*allocation);
    fx.batch.allocations.push_back(row);
    SubmitJob(*allocation, now, fx);
    state_.allocation_by_token[row.token] = row.id;
    state_.allocations.emplace(row.id, std::move(allocation));
    UpdateWaiting(study, now);
  }
}

void Lifecycle::SubmitJob(LiveAllocation& allocation, db::Micros now, Effects& fx) {
  allocation.submitted = true;
  allocation.submitting = true;
  allocation.excluded.clear();
  if (options_.avoid_nodes && !allocation.any_node) {
    for (AvoidedNode& node : state_.bad_nodes.Avoided(now))
      allocation.excluded.push_back(std::move(node.name));
  }
  JobRequest request = RequestOf(allocation);
  request.excluded_nodes = allocation.excluded;
  fx.submit.push_back(std::move(request));
}

void Lifecycle::EndExclusion(LiveAllocation& allocation, db::Micros now, Effects& fx) {
  if (allocation.excluded.empty() || allocation.row.state != db::AllocationState::kPending ||
      allocation.cancel_sent)
    return;
  const std::vector<AvoidedNode> avoided = state_.bad_nodes.Avoided(now);
  const bool over = std::none_of(avoided.begin(), avoided.end(), [&](const AvoidedNode& node) {
    return std::find(allocation.excluded.begin(), allocation.excluded.end(), node.name) !=
           allocation.excluded.end();
  });
  if (!over) return;
  allocation.withdrawn = true;
  allocation.row.reason = "its job excluded nodes that may be used again";
  fx.batch.allocations.push_back(allocation.row);
  EndJob(allocation, now, fx);
}

JobRequest Lifecycle::RequestOf(const LiveAllocation& allocation) const {
  const db::AllocationRow& row = allocation.row;
  const LiveStudy* study = state_.study(row.study_id);
  JobRequest request = RequestFor(study == nullptr ? v1::StudySpec() : study->spec,
                                  {row.nodes, row.ranks_per_node, row.cpus_per_rank, row.gpus_per_rank});
  request.token = row.token;
  request.user = row.owner;
  return request;
}

void Lifecycle::TryAgain(const std::string& owner, db::Micros now) {
  for (auto& [id, allocation] : state_.allocations) {
    if (allocation->row.owner != owner) continue;
    allocation->retry_at = std::min(allocation->retry_at, now);
    allocation->cancel_again_at = std::min(allocation->cancel_again_at, now);
    allocation->refusals = 0;
  }
  for (const int64_t id : state_.recovering) {
    LiveAttempt& attempt = *state_.attempt(id);
    if (state_.study(attempt.study_id)->row.owner != owner) continue;
    attempt.recovery->retry_at = std::min(attempt.recovery->retry_at, now);
  }
}

void Lifecycle::JobSubmitted(const std::string& token, const absl::StatusOr<std::string>& external_id,
                             db::Micros now, Effects& fx) {
  const auto it = state_.allocation_by_token.find(token);
  if (it == state_.allocation_by_token.end()) return;
  LiveAllocation& allocation = *state_.allocation(it->second);
  allocation.submitting = false;
  if (external_id.ok()) {
    allocation.row.external_id = *external_id;
    allocation.row.reason.clear();  // may be the reason of an earlier refusal
    allocation.refusals = allocation.unknown_errors = 0;
    if (allocation.row.state == db::AllocationState::kIntended)
      allocation.row.state = db::AllocationState::kPending;
    fx.batch.allocations.push_back(allocation.row);
    return;
  }
  const std::string reason(external_id.status().message());
  if (absl::IsInvalidArgument(external_id.status()) && !allocation.excluded.empty()) {
    // The remaining nodes may not be sufficient, so submit the job without excluding nodes.
    allocation.any_node = true;
    allocation.submitted = false;
    allocation.row.reason = reason;
    fx.batch.allocations.push_back(allocation.row);
    return;
  }
  if (absl::IsInvalidArgument(external_id.status()) || absl::IsPermissionDenied(external_id.status()))
    return GiveUpJob(allocation, reason, now, fx);
  // The error may be temporary, such as a limit of the user. Record it and submit again later, because the runs
  // have not failed. `explain` shows the reason.
  if (absl::IsUnknown(external_id.status()))
    ++allocation.unknown_errors;
  else if (!absl::IsUnavailable(external_id.status()))  // UNAVAILABLE is no answer of the scheduler
    allocation.unknown_errors = 0;
  allocation.submitted = false;
  allocation.retry_at = now + Backoff(++allocation.refusals, kSubmitAgain, token);
  allocation.row.reason = reason;
  fx.batch.allocations.push_back(allocation.row);
}

void Lifecycle::GiveUpJob(LiveAllocation& allocation, const std::string& reason, db::Micros now,
                          Effects& fx) {
  LiveStudy* study = state_.study(allocation.row.study_id);
  const int64_t run_id = allocation.row.run_id;
  EndAllocation(allocation, db::Cause::kLaunchError, reason, now, fx);
  if (study == nullptr || (run_id == 0 && OthersServe(*study))) return;
  FailQueued(*study, run_id, db::Cause::kLaunchError, absl::StrCat("the scheduler refused the job: ", reason),
             now, fx);
}

void Lifecycle::JobsPolled(const std::vector<JobStatus>& jobs, db::Micros asked, db::Micros now,
                           Effects& fx) {
  using JobState = JobStatus::State;
  for (const JobStatus& job : jobs) {
    const auto it = state_.allocation_by_token.find(job.token);
    if (it == state_.allocation_by_token.end()) continue;
    LiveAllocation& allocation = *state_.allocation(it->second);
    db::AllocationRow& row = allocation.row;
    if (job.state == JobState::kPending || job.state == JobState::kRunning) {
      allocation.forgotten = 0;
      const bool starts = job.state == JobState::kRunning && Waits(row.state);
      if (starts) {
        LeavePending(allocation);
        row.state = db::AllocationState::kRunning;
        row.started = now;
        allocation.listening_since = now;
      }
      // For an ending job, ends_at is its end time, not its limit.
      if (job.state == JobState::kRunning && !job.ending && job.ends_at != absl::InfiniteFuture()) {
        allocation.ends_at = absl::ToUnixMicros(job.ends_at);
      }
      const bool new_id = !job.external_id.empty() && row.external_id != job.external_id;
      // Keep the reason why the coordinator cancelled the job, for the end of its attempt.
      const bool new_reason = !allocation.cancel_sent && row.reason != job.reason;
      if (starts || new_reason || new_id) {
        if (new_reason) row.reason = job.reason;
        if (new_id) row.external_id = job.external_id;
        fx.batch.allocations.push_back(row);
      }
      allocation.ending = job.ending;
      const bool was_suspended = std::exchange(allocation.suspended, job.suspended);
      // Cancel the job again, because the earlier cancel may have failed. A job that is ending stays in the
      // list for some time.
      if (allocation.cancel_sent && now >= allocation.cancel_again_at) CancelAgain(allocation, now, fx);
      if (job.suspended || was_suspended) {  // no poll has shown that workers could report before
        for (auto& [node, worker] : allocation.workers) worker.last_seen = now;
        allocation.listening_since = now;
      }
      if (job.suspended) {
        for (LiveAttempt* stopped : state_.attempts_of(allocation)) stopped->stop_sent.clear();
      }
      LiveAttempt* attempt = state_.attempt(allocation.attempt_id);
      if (attempt != nullptr && attempt->held_since != 0 && attempt->held_since <= asked &&
          !allocation.ending && allocation.leaving_since == 0) {
        Conclude(allocation, *attempt, now, fx);  // only the attempt has ended, because the job continues
        Assign(allocation, now, fx);
      }
    } else if (job.state == JobState::kUnknown && Waits(row.state)) {
      if (allocation.submitting && !Planted(Bug::kSubmitInFlightForgotten)) {
        // Wait for the response to the submit, because the scheduler may accept the job after this poll.
      } else if (allocation.cancel_sent) {
        EndAllocation(allocation, db::Cause::kAllocationCancelled, "cancelled before it began", now, fx);
      } else if (allocation.unknown_errors >= options_.max_unknown_errors) {
        // The poll shows that the job does not exist.
        GiveUpJob(allocation,
                  absl::StrCat(allocation.unknown_errors,
                               " submissions in a row failed; the last one: ", row.reason),
                  now, fx);
      } else if (allocation.retry_at <= now && !state_.drain.on) {
        const bool accepted = row.state == db::AllocationState::kPending && allocation.submitted;
        if (accepted && ++allocation.forgotten >= options_.max_forgotten) {
          EndAllocation(allocation, db::Cause::kLaunchError,
                        absl::StrCat("the scheduler accepted its job ", allocation.forgotten,
                                     " times, and then did not list the job as pending or running"),
                        now, fx);
          continue;
        }
        const int failures = accepted ? allocation.forgotten : ++allocation.refusals;
        allocation.retry_at = now + Backoff(failures, kSubmitAgain, row.token);
        SubmitJob(allocation, now, fx);
      }
    } else if (job.state == JobState::kUnknown && HasRecentReport(allocation, now)) {
      // Keep the allocation: its workers report.
    } else {
      static const std::map<JobState, db::Cause> kCauses = {
          {JobState::kTimeout, db::Cause::kTimeout},
          {JobState::kPreempted, db::Cause::kPreempted},
          {JobState::kNodeFail, db::Cause::kNodeFail},
          {JobState::kOutOfMemory, db::Cause::kOutOfMemory},
          {JobState::kBootFail, db::Cause::kBootFail},
          {JobState::kDeadline, db::Cause::kDeadline},
          {JobState::kCancelled, db::Cause::kAllocationCancelled}};
      // If the coordinator cancelled the job because a worker was silent, the cause is WORKER_LOST. A job
      // that ended before that cancel keeps its own cause. The scheduler does not know the cancels that an
      // earlier process requested.
      const auto known = kCauses.find(job.state);
      const bool ours = allocation.cancel_sent && job.state == JobState::kCancelled &&
                        (!job.from_outside || allocation.cancelled_earlier);
      db::Cause cause = ours || known == kCauses.end() ? db::Cause::kWorkerLost : known->second;
      std::string reason = job.reason.empty() ? "its allocation ended" : job.reason;
      if (ours && !row.reason.empty()) reason = row.reason;
      // After the warning of the time limit, workers leave, and the job ends without an error before
      // its time limit.
      if (cause == db::Cause::kWorkerLost && allocation.leaving_since != 0 && allocation.ends_at != 0 &&
          allocation.leaving_since >= allocation.ends_at - EndMargin(allocation) - kWarningSlack) {
        cause = db::Cause::kTimeout;
        const LiveStudy* study = state_.study(row.study_id);
        reason = TimeLimitReason(study == nullptr ? absl::InfiniteDuration()
                                                  : absl::Seconds(study->spec.resources().time_seconds()));
      }
      EndAllocation(allocation, cause, reason, now, fx);
    }
  }
}

void Lifecycle::EndAllocation(LiveAllocation& allocation, db::Cause cause, const std::string& reason,
                              db::Micros now, Effects& fx) {
  LeavePending(allocation);
  Charge(allocation, now, fx);
  allocation.row.state = db::AllocationState::kEnded;
  allocation.row.ended = now;
  if (!reason.empty()) allocation.row.reason = reason;
  fx.batch.allocations.push_back(allocation.row);
  fx.woken.insert(allocation.row.id);
  if (allocation.cancel_failed) {
    fx.warnings.push_back(absl::StrCat("allocation ", allocation.row.token, ": its job has ended after ",
                                       allocation.cancels, " cancels"));
  }
  const int64_t id = allocation.row.id;
  const int64_t attempt_id = allocation.attempt_id;
  const std::deque<int64_t> next_attempts = allocation.next_attempts;
  const int64_t run_id = allocation.row.run_id;
  const bool shared = allocation.served > 1;
  const bool unused = allocation.served == 0 && !allocation.withdrawn;
  LiveStudy* study = state_.study(allocation.row.study_id);  // null when the study is over
  if (study != nullptr) {
    study->gpu_seconds += 1e-6 * static_cast<double>(allocation.row.held) * Uncharged(allocation, now).gpus;
    study->RemoveAllocation(allocation);
  }
  for (LiveAttempt* attempt : state_.attempts_of(allocation)) attempt->hardware = NodesOf(*attempt);
  state_.allocation_by_token.erase(allocation.row.token);
  state_.allocations.erase(id);  // invalidates `allocation`
  if (LiveAttempt* attempt = state_.attempt(attempt_id)) {
    const bool stopping = attempt->row.state == db::AttemptState::kStopping;
    if (cause == db::Cause::kTimeout && !stopping && !attempt->recovery) {
      study->RunTook(attempt->position, now - attempt->began());
      attempt->cut_short = shared;
    }
    EndWithoutWorkers(*attempt, cause, reason, now, fx);
  }
  for (const int64_t next : next_attempts) EndWithoutWorkers(*state_.attempt(next), cause, reason, now, fx);
  if (study == nullptr) return;
  if (unused) CountFailedAllocation(*study, run_id, cause, reason, now, fx);
  UpdateWaiting(*study, now);
}

bool Lifecycle::OthersServe(const LiveStudy& study) const {
  return std::any_of(study.allocations.begin(), study.allocations.end(), [&](int64_t id) {
    const LiveAllocation& allocation = *state_.allocation(id);
    return allocation.served > 0 && Holds(allocation);
  });
}

void Lifecycle::CountFailedAllocation(LiveStudy& study, int64_t run_id, db::Cause cause,
                                      const std::string& reason, db::Micros now, Effects& fx) {
  const bool needed = run_id == 0 ? !study.queued.empty() : study.queued.contains(study.PositionOf(run_id));
  if (!needed || !WhyNotBegin(study).empty()) return;
  FailedAllocations& failed = study.failed_allocations[run_id];
  failed.reason = reason;
  // Preemption does not count as a failure, and may happen any number of times.
  if (cause != db::Cause::kPreempted) ++failed.count;
  failed.retry_at =
      now + Backoff(std::max(1, failed.count), kAllocateAgain, absl::StrCat(study.row.id, "/", run_id));
  if (failed.count < options_.max_failed_allocations || cause == db::Cause::kPreempted) return;
  if (run_id == 0 && OthersServe(study)) return;
  const std::string message = absl::StrCat(
      failed.count, " allocations in a row ended before an attempt began; the last one: ", reason);
  FailQueued(study, run_id, db::Cause::kLaunchError, message, now, fx);
}

void Lifecycle::Release(LiveAllocation& allocation, const std::string& reason, db::Micros now, Effects& fx) {
  if (allocation.row.state == db::AllocationState::kReleasing) return;
  if (Waits(allocation.row.state)) {
    if (!allocation.cancel_sent) EndJob(allocation, now, fx);
    return;
  }
  allocation.row.state = db::AllocationState::kReleasing;
  UpdateAllocation(allocation);
  allocation.row.reason = reason;
  fx.batch.allocations.push_back(allocation.row);
  Wake(allocation, fx);
}

void Lifecycle::EndJob(LiveAllocation& allocation, db::Micros now, Effects& fx) {
  LeavePending(allocation);
  allocation.cancel_sent = true;
  UpdateAllocation(allocation);
  if (allocation.first_cancel == 0) allocation.first_cancel = now;
  if (allocation.row.cancelled == 0) {
    allocation.row.cancelled = now;
    fx.batch.allocations.push_back(allocation.row);
  }
  allocation.cancel_again_at = now + Backoff(++allocation.cancels, kCancelAgain, allocation.row.token);
  fx.cancel.push_back(allocation.row.token);
}

void Lifecycle::UpdateAllocation(const LiveAllocation& allocation) {
  if (LiveStudy* study = state_.study(allocation.row.study_id)) study->UpdateAllocation(allocation);
}

// Removes the allocation from the number of pending allocations. Must be called before the allocation stops
// being pending or is cancelled.
void Lifecycle::LeavePending(LiveAllocation& allocation) {
  if (!Waits(allocation.row.state) || allocation.cancel_sent) return;
  const auto it = state_.pending.find(QueueOf(allocation));
  if (--it->second == 0) state_.pending.erase(it);
}

void Lifecycle::FailQueued(LiveStudy& study, int64_t run_id, db::Cause cause, const std::string& message,
                           db::Micros now, Effects& fx) {
  if (run_id == 0) study.EndDelays();  // a run with its own allocation is not delayed
  for (const int position : AllQueued(study)) {
    if (run_id != 0 && study.runs[position].id != run_id) continue;
    study.runs[position].cause = cause;
    study.runs[position].message = message;
    SetRunState(study, position, db::RunState::kFailed, now, fx);
  }
  UpdateStudy(study, now, fx);
}

bool Lifecycle::JobsChange() const {
  return std::any_of(state_.allocations.begin(), state_.allocations.end(), [](const auto& entry) {
    const LiveAllocation& allocation = *entry.second;
    if (allocation.cancel_failed) return false;
    return allocation.row.state != db::AllocationState::kRunning || allocation.cancel_sent ||
           allocation.ending || allocation.leaving_since != 0;
  });
}

std::vector<std::string> Lifecycle::JobsToPoll() const {
  std::vector<std::string> tokens;
  tokens.reserve(state_.allocations.size());
  for (const auto& [id, allocation] : state_.allocations) tokens.push_back(allocation->row.token);
  return tokens;
}

}  // namespace scalelab::server
