// Implements the functions of Lifecycle that limit failures and use: delays between attempts, pauses, retries
// by users, limits of GPU-hours.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/status.h"
#include "server/core/accounting.h"
#include "server/core/backoff.h"
#include "server/core/blocks.h"
#include "server/core/convert.h"
#include "server/core/lifecycle.h"

namespace scalelab::server {
namespace {

constexpr int kMaxReruns = 2;  // the default of NoiseGuard.max_reruns

// Delays before a failed run is tried again. With their variation, they are at most 1 s and 300 s.
constexpr BackoffLimits kRepeatAgain{800'000, 240'000'000};
// An allocation that has nothing else to do waits for a delayed run for at most this time. For a longer delay,
// it is released.
constexpr db::Micros kLongestIdle = 30'000'000;

}  // namespace

std::string FailedCancelText(const LiveAllocation& allocation) {
  constexpr size_t kNamed = 3;
  const std::string& id = allocation.row.external_id;
  std::string text = absl::StrCat(id.empty() ? "its job" : absl::StrCat("job ", id), " has not ended after ",
                                  allocation.cancels, " cancels");
  if (!allocation.cancel_error.empty()) {
    absl::StrAppend(&text, ", the last of which failed: ", allocation.cancel_error);
  } else if (allocation.ending) {
    absl::StrAppend(&text, ", although the scheduler reports that it is ending");
  }
  absl::StrAppend(&text, "; it is cancelled again every 5 minutes; an operator can end it (Slurm: `scancel ",
                  id.empty() ? absl::StrCat("--name=", allocation.row.token) : id, "`)");
  std::vector<std::string> nodes;
  for (const auto& [index, worker] : allocation.workers) {
    if (nodes.size() < kNamed) nodes.push_back(worker.node);
  }
  if (nodes.empty()) return text;
  if (allocation.workers.size() > kNamed)
    nodes.push_back(absl::StrCat(allocation.workers.size() - kNamed, " more"));
  absl::StrAppend(&text, " or look for its processes on ", absl::StrJoin(nodes, ", "));
  return text;
}

void Lifecycle::JobsCancelled(const std::vector<std::string>& tokens, const absl::Status& status) {
  for (const std::string& token : tokens) {
    const auto it = state_.allocation_by_token.find(token);
    if (it != state_.allocation_by_token.end())
      state_.allocation(it->second)->cancel_error = std::string(status.message());
  }
}

void Lifecycle::CancelAgain(LiveAllocation& allocation, db::Micros now, Effects& fx) {
  if (allocation.cancels >= options_.max_cancels && !allocation.cancel_failed) {
    allocation.cancel_failed = true;
    fx.warnings.push_back(
        absl::StrCat("allocation ", allocation.row.token, ": ", FailedCancelText(allocation)));
    if (LiveStudy* study = state_.study(allocation.row.study_id)) {
      ++study->revision;
      fx.changed_studies.insert(study->row.id);
    }
  }
  EndJob(allocation, now, fx);
}

absl::Status Lifecycle::Retry(int64_t study_id, int64_t run_id, std::unique_ptr<LiveStudy> final_study,
                              int64_t final_changes, db::Micros now, Effects& fx) {
  LiveStudy* study = state_.study(study_id);
  if (study == nullptr && (final_study == nullptr || final_changes != state_.final_changes)) {
    return absl::AbortedError(absl::StrCat(StudyName(study_id), " has just changed; try again"));
  }
  const bool live = study != nullptr;
  if (!live) study = final_study.get();
  std::vector<int> again;
  for (const db::RunRow& run : study->runs) {
    const bool failed = run.state == db::RunState::kFailed;
    const bool cancelled = run.state == db::RunState::kCancelled;
    if (run_id == 0 ? failed : run.id == run_id && (failed || cancelled)) again.push_back(run.position);
  }
  if (again.empty()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NOTHING_TO_RETRY",
                     run_id == 0
                         ? absl::StrCat(StudyName(study_id), " has no failed run; nothing is changed")
                         : absl::StrCat(RunName(study_id, run_id),
                                        " has neither failed nor been cancelled; nothing is changed"));
  }
  if (!live) {
    ++state_.final_changes;
    study->ForgetAllocations();
    for (const auto& [id, allocation] : state_.allocations) {
      if (allocation->row.study_id == study_id) study->UpdateAllocation(*allocation);
    }
    state_.studies.emplace(study_id, std::move(final_study));
  }
  study->row.state = study->row.started == 0 ? db::StudyState::kQueued : db::StudyState::kRunning;
  study->row.finished = 0;
  study->row.cancel_requested = false;
  study->row.pause_reason.clear();
  study->failed_allocations.clear();
  study->storage_errors = 0;
  fx.batch.studies.push_back(study->row);
  for (const int position : again) {
    db::RunRow& run = study->runs[position];
    run.uncounted = run.attempts;
    run.cause = db::Cause::kNone;
    run.message.clear();
    study->failed_attempts.erase(position);
    SetRunState(*study, position, db::RunState::kQueued, now, fx);
  }
  UpdateWaiting(*study, now);
  return absl::OkStatus();
}

std::vector<v1::NodeNoise> Lifecycle::TakeNoise(const LiveAttempt& attempt) {
  std::vector<v1::NodeNoise> all;
  const LiveAllocation* allocation = state_.allocation(attempt.row.allocation_id);
  for (const auto& [node, status] : attempt.ended) {
    if (!status.has_noise()) return {};
    v1::NodeNoise& noise = all.emplace_back(status.noise());
    noise.clear_reasons();
    const auto worker =
        allocation == nullptr ? std::map<int, WorkerState>::const_iterator() : allocation->workers.find(node);
    const bool known = allocation != nullptr && worker != allocation->workers.end();
    NoiseVerdict verdict = state_.noise.Judge(noise, known ? worker->second.info.cpus() : 0);
    for (std::string& reason : verdict.reasons) noise.add_reasons(std::move(reason));
    noise.set_severity(verdict.severity);
    state_.noise.Add(noise);
  }
  return all;
}

db::AttemptState Lifecycle::ConsiderNoise(const LiveStudy& study, int position,
                                          const std::vector<v1::NodeNoise>& noise, db::Cause& cause,
                                          std::string& message) const {
  // All ranks wait for the slowest one, so one disturbed node disturbs the attempt.
  const v1::NodeNoise* worst = nullptr;
  int disturbed = 0;
  for (const v1::NodeNoise& node : noise) {
    if (node.reasons().empty()) continue;
    ++disturbed;
    if (worst == nullptr || node.severity() > worst->severity()) worst = &node;
  }
  if (worst == nullptr) return db::AttemptState::kSucceeded;
  cause = db::Cause::kNoisy;
  message = absl::StrCat(noise.size() == 1 ? "" : absl::StrCat(worst->node(), ": "),
                         absl::StrJoin(worst->reasons(), "; "));
  if (disturbed > 1)
    absl::StrAppend(&message, "; ", disturbed - 1, " other node", disturbed == 2 ? " was" : "s were",
                    " disturbed, too");
  const v1::NoiseGuard& guard = study.spec.noise_guard();
  const auto made = study.reruns.find(position);
  const int most = guard.has_max_reruns() ? guard.max_reruns() : kMaxReruns;
  const bool repeat = guard.rerun_if() == v1::NoiseGuard::NOISY && !study.row.cancel_requested &&
                      (made == study.reruns.end() ? 0 : made->second) < most;
  return repeat ? db::AttemptState::kFailed : db::AttemptState::kSucceeded;
}

absl::Status Lifecycle::ResumeStudy(int64_t study_id, db::Micros now, Effects& fx) {
  LiveStudy* study = state_.study(study_id);
  if (study == nullptr || study->row.pause_reason.empty()) return absl::OkStatus();
  study->row.pause_reason.clear();
  study->failed_allocations.clear();
  study->failed_attempts.clear();
  study->EndDelays();
  study->storage_errors = 0;
  ++study->revision;
  fx.batch.studies.push_back(study->row);
  fx.changed_studies.insert(study_id);
  UpdateWaiting(*study, now);
  return absl::OkStatus();
}

void Lifecycle::Pause(LiveStudy& study, std::string reason, db::Micros now, Effects& fx) {
  const bool none_left = study.queued.empty() && study.delayed.empty() && study.later.empty();
  if (!study.row.pause_reason.empty() || none_left) return;
  study.row.pause_reason = std::move(reason);
  ++study.revision;
  fx.batch.studies.push_back(study.row);
  fx.changed_studies.insert(study.row.id);
  WithdrawAll(study, now, fx);
  UpdateWaiting(study, now);
}

bool Lifecycle::WaitsForDelayed(const LiveStudy& study, const LiveAllocation& allocation,
                                db::Micros now) const {
  const bool group = allocation.row.run_id == 0;
  const bool parallel = ConcurrentAllocations(study.spec) > 1;
  return std::any_of(study.delayed.begin(), study.delayed.end(), [&](const auto& entry) {
    const auto& [position, until] = entry;
    if (until - now > kLongestIdle || !FitsInto(allocation, study, position, until)) return false;
    if (!group) return study.runs[position].id == allocation.row.run_id;
    const BlockPart part = PartOf(study, position);
    return parallel ? part == allocation.part : part.shape == ShapeIndexOf(study, allocation);
  });
}

void Lifecycle::Delay(LiveStudy& study, int position, db::Micros now) {
  FailedAttempts& failed = study.failed_attempts[position];
  study.queued.erase(position);
  study.delayed[position] =
      now + Backoff(++failed.count, kRepeatAgain, absl::StrCat("run/", study.runs[position].id));
}

void Lifecycle::QueueDelayed(LiveStudy& study, db::Micros now, Effects& fx) {
  const size_t before = study.delayed.size();
  std::erase_if(study.delayed, [&](const auto& entry) {
    if (entry.second > now) return false;
    study.queued.insert(entry.first);
    return true;
  });
  if (study.delayed.size() == before) return;
  ++study.revision;
  fx.changed_studies.insert(study.row.id);
  const std::vector<int64_t> allocations(study.allocations.begin(), study.allocations.end());
  for (const int64_t id : allocations) Assign(*state_.allocation(id), now, fx);
  UpdateWaiting(study, now);
}

// Counts the attempt for the study, whose other runs would also fail, and for the run, because other runs may
// succeed in between.
void Lifecycle::CountStorageErrors(LiveStudy& study, int position, db::Cause cause,
                                   const std::string& message, db::Micros now, Effects& fx) {
  if (cause != db::Cause::kStorageError) {
    study.storage_errors = 0;
    if (const auto failed = study.failed_attempts.find(position); failed != study.failed_attempts.end())
      failed->second.storage_errors = 0;
    return;
  }
  const int of_study = ++study.storage_errors;
  const int of_run = ++study.failed_attempts[position].storage_errors;
  if (std::max(of_study, of_run) < options_.max_storage_errors) return;
  const bool several = of_study >= options_.max_storage_errors;
  Pause(study,
        absl::StrCat(several ? of_study : of_run, " attempts in a row",
                     several ? "" : " of " + RunName(study.row.id, study.runs[position].id),
                     " could not write their files: ", message),
        now, fx);
}

void Lifecycle::PauseIfAllFail(LiveStudy& study, db::Cause cause, const std::string& message, db::Micros now,
                               Effects& fx) {
  const auto count = [&](db::RunState s) { return study.counts[static_cast<int>(s)]; };
  if (count(db::RunState::kFailed) != options_.same_failures || count(db::RunState::kSucceeded) > 0) return;
  const bool same = std::all_of(study.runs.begin(), study.runs.end(), [&](const db::RunRow& run) {
    return run.state != db::RunState::kFailed || run.cause == cause;
  });
  if (!same) return;
  Pause(study, absl::StrCat("its first ", options_.same_failures, " runs failed in the same way: ", message),
        now, fx);
}

void Lifecycle::EnforceGpuLimit(LiveStudy& study, db::Micros now, Effects& fx) {
  const double limit = study.spec.limits().gpu_hours();
  const double used = GpuSecondsOf(state_, study, now);
  if (used < limit * 3600) return;
  const std::string reason = absl::StrFormat(
      "the study has used %.3g GPU-hours, limits.gpu_hours is %.3g; submit the rest as another study",
      used / 3600, limit);
  const std::vector<int64_t> allocations(study.allocations.begin(), study.allocations.end());
  for (const int64_t id : allocations) {
    LiveAllocation& allocation = *state_.allocation(id);
    const std::vector<LiveAttempt*> attempts = state_.attempts_of(allocation);
    for (LiveAttempt* attempt : attempts) {
      if (attempt->row.state != db::AttemptState::kStopping) attempt->stop_reason = reason;
      StopAttempt(*attempt, now, fx);
    }
    if (attempts.empty()) Release(allocation, "limits.gpu_hours is reached", now, fx);
  }
  if (!study.queued.empty() || !study.delayed.empty() || !study.later.empty())
    FailQueued(study, 0, db::Cause::kDeadline, reason, now, fx);
}

}  // namespace scalelab::server
