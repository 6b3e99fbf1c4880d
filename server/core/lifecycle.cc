#include "server/core/lifecycle.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planted/bug.h"
#include "proto/status.h"
#include "server/core/blocks.h"
#include "server/notify/notices.h"

namespace scalelab::server {

namespace {

constexpr size_t kRememberedRequests = 10'000;
constexpr db::Micros kEndOfTime = std::numeric_limits<db::Micros>::max();

}  // namespace

absl::Status RequestIdReused(const std::string& request_id, int64_t study_id) {
  return MakeError(absl::StatusCode::kAlreadyExists, "REQUEST_ID_REUSED",
                   absl::StrCat("request id '", request_id, "' has already made studies/", study_id,
                                " from a different specification; use a new request id"));
}

absl::StatusOr<int64_t> Lifecycle::Submit(NewStudy study, db::Micros now, Effects& fx) {
  db::StudyRow& row = study.state->row;
  if (!row.request_id.empty() && !Planted(Bug::kRequestIdIgnored)) {
    const auto key = std::pair(row.owner, row.request_id);
    const size_t content = std::hash<std::string>()(row.spec);
    const auto [it, fresh] = state_.requests.emplace(key, std::pair(state_.last_study_id + 1, content));
    if (!fresh) {
      if (it->second.second == content) return it->second.first;
      return RequestIdReused(row.request_id, it->second.first);
    }
    state_.request_order.push_back(key);
    if (state_.request_order.size() > kRememberedRequests) {
      state_.requests.erase(state_.request_order.front());
      state_.request_order.pop_front();
    }
  }
  row.id = ++state_.last_study_id;
  row.created = now;
  row.runs = static_cast<int64_t>(study.state->runs.size());
  fx.batch.studies.push_back(row);
  if (!study.study_file.empty()) fx.batch.study_files.push_back({row.id, std::move(study.study_file)});
  for (db::CellValueRow& value : study.cell_values) {
    value.study_id = row.id;
    fx.batch.cell_values.push_back(std::move(value));
  }
  const int64_t first_cell_id = state_.last_cell_id + 1;
  fx.batch.cells.reserve(fx.batch.cells.size() + study.cells.size());
  for (db::CellRow& cell : study.cells) {
    cell.id = ++state_.last_cell_id;
    cell.study_id = row.id;
    fx.batch.cells.push_back(std::move(cell));
  }
  study.cells = {};
  fx.batch.runs.reserve(fx.batch.runs.size() + study.state->runs.size());
  for (size_t p = 0; p < study.state->runs.size(); ++p) {
    db::RunRow& run = study.state->runs[p];
    run.id = ++state_.last_run_id;
    run.study_id = row.id;
    run.cell_id = first_cell_id + study.state->cell_of[p];
    run.position = static_cast<int>(p);
    study.state->queued.insert(study.state->queued.end(), run.position);
    study.state->UpdateUnallocated(run.position);
    fx.batch.runs.push_back(run);
  }
  study.state->counts[static_cast<int>(db::RunState::kQueued)] = row.runs;
  LiveStudy& kept = *study.state;
  HoldLaterBlocks(kept);
  state_.studies.emplace(row.id, std::move(study.state));
  UpdateWaiting(kept, now);
  fx.changed_studies.insert(kept.row.id);
  return kept.row.id;
}

absl::Status Lifecycle::CancelStudy(int64_t study_id, db::Micros now, Effects& fx) {
  LiveStudy* study = state_.study(study_id);
  if (study == nullptr) return absl::OkStatus();  // already final
  study->row.cancel_requested = true;
  fx.batch.studies.push_back(study->row);
  study->EndDelays();
  for (const int position : AllQueued(*study))
    SetRunState(*study, position, db::RunState::kCancelled, now, fx);
  const std::vector<int64_t> allocations(study->allocations.begin(), study->allocations.end());
  for (const int64_t id : allocations) {
    LiveAllocation& allocation = *state_.allocation(id);
    const std::vector<LiveAttempt*> attempts = state_.attempts_of(allocation);
    for (LiveAttempt* attempt : attempts) StopAttempt(*attempt, now, fx);
    if (attempts.empty()) Release(allocation, "the study was cancelled", now, fx);
  }
  for (const int64_t id : state_.recovering) {
    if (LiveAttempt& attempt = *state_.attempt(id); attempt.study_id == study_id)
      StopAttempt(attempt, now, fx);
  }
  UpdateStudy(*study, now, fx);
  return absl::OkStatus();
}

absl::Status Lifecycle::CancelRun(int64_t study_id, int64_t run_id, db::Micros now, Effects& fx) {
  LiveStudy* study = state_.study(study_id);
  if (study == nullptr) return absl::OkStatus();
  const auto run =
      std::find_if(study->runs.begin(), study->runs.end(), [&](const auto& r) { return r.id == run_id; });
  if (run == study->runs.end() || IsFinal(run->state)) return absl::OkStatus();
  if (run->state == db::RunState::kQueued) {
    SetRunState(*study, run->position, db::RunState::kCancelled, now, fx);
    for (const int64_t id : study->allocations) {
      LiveAllocation& allocation = *state_.allocation(id);
      if (allocation.row.run_id == run_id) Release(allocation, "its run was cancelled", now, fx);
    }
    UpdateStudy(*study, now, fx);
    return absl::OkStatus();
  }
  for (const int64_t id : study->allocations) {
    for (LiveAttempt* attempt : state_.attempts_of(*state_.allocation(id))) {
      if (attempt->position == run->position) StopAttempt(*attempt, now, fx);
    }
  }
  for (const int64_t id : state_.recovering) {
    if (LiveAttempt& attempt = *state_.attempt(id); attempt.row.run_id == run_id)
      StopAttempt(attempt, now, fx);
  }
  return absl::OkStatus();
}

absl::Status Lifecycle::DeleteStudy(int64_t study_id, Effects& fx) {
  const LiveStudy* live = state_.study(study_id);
  if (live != nullptr && !IsFinal(live->row.state)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "STUDY_NOT_FINAL",
                     absl::StrCat("studies/", study_id, " is not over; cancel it first"));
  }
  fx.batch.deleted_studies.push_back(study_id);
  // The store forgets the request id too: its owner may use it again.
  const auto made = std::find_if(state_.requests.begin(), state_.requests.end(),
                                 [&](const auto& request) { return request.second.first == study_id; });
  if (made != state_.requests.end()) {
    std::erase(state_.request_order, made->first);
    state_.requests.erase(made);
  }
  ++state_.final_changes;
  return absl::OkStatus();
}

void Lifecycle::Tick(db::Micros now, Effects& fx) {
  for (const auto& [id, allocation] : state_.allocations) {
    Withdraw(*allocation, now, fx);
    if (allocation->row.state == db::AllocationState::kIntended && !allocation->submitted &&
        !allocation->cancel_sent && allocation->retry_at <= now && !state_.drain.on) {
      SubmitJob(*allocation, now, fx);
    }
    EndExclusion(*allocation, now, fx);
    CancelIfSilent(*allocation, now, fx);
    StoreMovedCharge(*allocation, fx);
    LiveAttempt* attempt = state_.attempt(allocation->attempt_id);
    if (attempt != nullptr && attempt->recovery) attempt = nullptr;  // the attempt has no process to stop
    if (attempt != nullptr && attempt->row.state == db::AttemptState::kStopping && !allocation->cancel_sent &&
        StopIsOverdue(*allocation, *attempt, now)) {
      EndJob(*allocation, now, fx);
    }
    // The scheduler has not responded in time, so decide by the worker's report alone.
    if (attempt != nullptr && attempt->held_since != 0 && allocation->leaving_since == 0 &&
        now - attempt->held_since > options_.hold_timeout) {
      Conclude(*allocation, *attempt, now, fx);
    }
  }
  EndSlowRecoveries(now, fx);
  ReadEvents(now, fx);
  for (const auto& [id, study] : state_.studies) {
    if (study->spec.limits().gpu_hours() > 0) EnforceGpuLimit(*study, now, fx);
  }
  for (const auto& [id, study] : state_.studies) QueueDelayed(*study, now, fx);
  for (const int64_t id : std::set<int64_t>(state_.reassess)) {
    if (LiveStudy* study = state_.study(id)) AssessIfDue(*study, now, fx);
  }
  const std::vector<int64_t> delayed(state_.delayed.begin(), state_.delayed.end());
  for (const int64_t id : delayed) UpdateWaiting(*state_.study(id), now);
  Plan(now, fx);
}

// Returns whether other runs may need the allocation after the attempts that are being stopped.
bool Lifecycle::IsNeededByOthers(const LiveAllocation& allocation) const {
  const LiveStudy* study = state_.study(allocation.row.study_id);
  if (study == nullptr || study->row.cancel_requested || allocation.row.run_id != 0 || !Serves(allocation))
    return false;
  const std::vector<LiveAttempt*> attempts = state_.attempts_of(allocation);
  return study->counts[static_cast<int>(db::RunState::kQueued)] > 0 ||
         std::any_of(attempts.begin(), attempts.end(), [](const LiveAttempt* attempt) {
           return attempt->row.state != db::AttemptState::kStopping;
         });
}

// Returns whether an attempt has not stopped in time, so that its allocation must be ended. If other runs need
// the allocation, only time counts in which the workers can stop the attempt: the job is not suspended, and all
// workers report. CancelIfSilent ends an allocation with a worker that does not report any more.
bool Lifecycle::StopIsOverdue(const LiveAllocation& allocation, const LiveAttempt& attempt,
                              db::Micros now) const {
  db::Micros until = now;
  if (IsNeededByOthers(allocation)) {
    if (allocation.suspended) return false;
    for (int node = 0; node < attempt.nodes(); ++node) {
      const auto worker = allocation.workers.find(node);
      if (worker == allocation.workers.end() || !attempt.stop_sent.contains(node)) return false;
      until = std::min(until, worker->second.last_seen);
    }
  }
  return until - attempt.stopping_since > options_.stop_timeout;
}

// Cancels an allocation if one of its workers is silent. Does not cancel one that the last answer of the scheduler
// showed as suspended, because its workers cannot report.
void Lifecycle::CancelIfSilent(LiveAllocation& allocation, db::Micros now, Effects& fx) {
  db::AllocationRow& row = allocation.row;
  const bool live =
      row.state == db::AllocationState::kRunning || row.state == db::AllocationState::kReleasing;
  if (!live || allocation.cancel_sent || allocation.suspended) return;
  for (int node = 0; node < row.nodes; ++node) {
    const auto worker = allocation.workers.find(node);
    if (worker != allocation.workers.end()) {
      const db::Micros silence = now - worker->second.last_seen;
      if (silence <= options_.worker_timeout) continue;
      row.reason =
          absl::StrCat("its worker on ", worker->second.node, " was silent for ", silence / 1'000'000, " s");
    } else {
      if (now - allocation.listening_since <= options_.worker_timeout) continue;
      row.reason = absl::StrCat("no report from ", row.nodes - static_cast<int>(allocation.workers.size()),
                                " of its ", row.nodes, " workers");
    }
    fx.batch.allocations.push_back(row);
    EndJob(allocation, now, fx);
    if (LiveAttempt* attempt = state_.attempt(allocation.attempt_id);
        attempt != nullptr && Planted(Bug::kSilentRunRepeated)) {
      EndAttempt(*attempt, db::AttemptState::kFailed, db::Cause::kWorkerLost, row.reason, now, fx);
    }
    return;
  }
}

// Returns whether one of the allocation's workers has reported recently. Such an allocation has not ended,
// even if the scheduler does not list its job.
bool Lifecycle::HasRecentReport(const LiveAllocation& allocation, db::Micros now) const {
  return std::any_of(allocation.workers.begin(), allocation.workers.end(), [&](const auto& worker) {
    return now - worker.second.last_seen <= options_.recent_report;
  });
}

void Lifecycle::MoveWorkerTimeouts(db::Micros gap) {
  for (const auto& [id, allocation] : state_.allocations) {
    if (allocation->listening_since != 0) allocation->listening_since += gap;
    for (auto& [node, worker] : allocation->workers) worker.last_seen += gap;
  }
  for (const auto& [id, attempt] : state_.attempts) {
    if (attempt->stopping_since != 0) attempt->stopping_since += gap;
  }
}

void Lifecycle::MoveTimeouts(db::Micros gap, db::Micros of_wall_clock) {
  MoveWorkerTimeouts(gap);
  const auto move = [gap](std::initializer_list<db::Micros*> times) {
    for (db::Micros* time : times) {
      if (*time != 0) *time += gap;
    }
  };
  for (const auto& [id, allocation] : state_.allocations) {
    move({&allocation->retry_at, &allocation->cancel_again_at, &allocation->first_cancel});
    db::AllocationRow& row = allocation->row;
    if (row.started == 0 || of_wall_clock == 0) continue;
    row.charged_until = (row.charged_until != 0 ? row.charged_until : row.started) + of_wall_clock;
    allocation->charge_moved = true;
  }
  for (const auto& [id, attempt] : state_.attempts) {
    move({&attempt->held_since});
    if (of_wall_clock != 0) {  // the duration of the run must not include the change
      db::Micros& run_started = state_.study(attempt->study_id)->runs[attempt->position].started;
      for (db::Micros* time :
           {&attempt->row.assigned, &attempt->row.started, &attempt->turn_since, &run_started}) {
        if (*time != 0) *time += of_wall_clock;
      }
    }
    if (!attempt->recovery) continue;
    Recovery& recovery = *attempt->recovery;
    move({&recovery.since, &recovery.began, &recovery.retry_at, &recovery.failing, &recovery.progress,
          &recovery.away});
  }
  for (auto& [directory, time] : state_.reads_answered) time += gap;
  for (const auto& [id, study] : state_.studies) {
    for (auto& [run, failed] : study->failed_allocations) {
      if (failed.retry_at != 0) failed.retry_at += gap;
    }
    for (auto& [position, until] : study->delayed) until += gap;
  }
}

// --- Bookkeeping

void Lifecycle::Wake(LiveAllocation& allocation, Effects& fx) {
  allocation.generation = ++state_.last_generation;
  fx.woken.insert(allocation.row.id);
}

void Lifecycle::SetRunState(LiveStudy& study, int position, db::RunState to, db::Micros now, Effects& fx) {
  db::RunRow& run = study.runs[position];
  --study.counts[static_cast<int>(run.state)];
  ++study.counts[static_cast<int>(to)];
  if (run.state == db::RunState::kQueued) {
    study.queued.erase(position);
    study.delayed.erase(position);
    study.later.erase(position);
  }
  if (to == db::RunState::kQueued) study.queued.insert(position);
  run.state = to;
  study.UpdateUnallocated(position);
  run.finished = IsFinal(to) ? now : 0;
  if (to == db::RunState::kFailed && study.counts[static_cast<int>(to)] == 1)
    AddFailureNotices({study.row, study.spec, study.counts}, run, now, fx.batch);
  fx.batch.runs.push_back(run);
  ++study.revision;
  fx.changed_studies.insert(study.row.id);
}

void Lifecycle::UpdateStudy(LiveStudy& study, db::Micros now, Effects& fx) {
  using db::RunState;
  UpdateWaiting(study, now);
  AssessIfDue(study, now, fx);
  const auto count = [&](RunState s) { return study.counts[static_cast<int>(s)]; };
  if (count(RunState::kQueued) + count(RunState::kRunning) > 0) return;
  study.row.state = study.row.cancel_requested && count(RunState::kCancelled) > 0 ? db::StudyState::kCancelled
                    : count(RunState::kFailed) > 0                                ? db::StudyState::kFailed
                    : count(RunState::kCancelled) > 0                             ? db::StudyState::kCancelled
                                                      : db::StudyState::kSucceeded;
  study.row.finished = now;
  study.row.pause_reason.clear();
  study.row.held = false;
  ++study.revision;
  fx.batch.studies.push_back(study.row);
  AddEndNotices({study.row, study.spec, study.counts}, fx.batch);
  fx.changed_studies.insert(study.row.id);
  state_.waiting.Remove(study.row.id);
  for (const int64_t id : std::vector<int64_t>(study.allocations.begin(), study.allocations.end())) {
    Release(*state_.allocation(id), "the study is over", now, fx);
  }
}

void Lifecycle::UpdateQueue(db::Micros now) {
  for (const auto& [id, study] : state_.studies) {
    HoldLaterBlocks(*study);
    if (WaitsForAssessment(*study)) state_.reassess.insert(id);
    UpdateWaiting(*study, now);
  }
}

void Lifecycle::UpdateWaiting(LiveStudy& study, db::Micros now) {
  const bool may = !study.queued.empty() && !study.row.cancel_requested && study.row.pause_reason.empty() &&
                   !study.row.held;
  const bool now_possible = may && NextAllocation(study, now).has_value();
  const bool later = may && !now_possible && !study.failed_allocations.empty() &&
                     NextAllocation(study, kEndOfTime).has_value();
  if (now_possible) {
    state_.waiting.Add(study.row.id, study.row.priority, study.row.owner, study.spec.resources().partition());
  } else {
    state_.waiting.Remove(study.row.id);
  }
  if (later) {
    state_.delayed.insert(study.row.id);
  } else {
    state_.delayed.erase(study.row.id);
  }
}

std::optional<NewAllocation> Lifecycle::NextAllocation(const LiveStudy& study, db::Micros now) const {
  const int most = ConcurrentAllocations(study.spec);
  if (static_cast<int64_t>(study.allocations.holding()) >= most && !Planted(Bug::kTwoAllocations))
    return std::nullopt;
  const auto may_start = [&](int64_t run_id) {
    const auto failed = study.failed_allocations.find(run_id);
    return failed == study.failed_allocations.end() || failed->second.retry_at <= now;
  };
  if (study.spec.allocation() != v1::StudySpec::PER_RUN) {
    if (!may_start(0)) return std::nullopt;
    const std::optional<int> shape = NextShape(study);
    if (!shape) return std::nullopt;
    return NewAllocation{0, study.shapes[*shape]};
  }
  const auto serving = static_cast<int64_t>(study.allocations.serving());
  const int64_t running = study.counts[static_cast<int>(db::RunState::kRunning)];
  // An allocation may also wait for the next attempt of its run.
  const auto waiting = static_cast<int64_t>(study.queued.size() + study.delayed.size());
  if (serving >= waiting + running) return std::nullopt;
  for (const int position : study.unallocated) {
    const int64_t run_id = study.runs[position].id;
    if (!study.queued.contains(position) || !may_start(run_id)) continue;
    return NewAllocation{run_id,
                         ShapeOf(study.cells.NeedsOf(study.cell_of[position]), study.spec.resources())};
  }
  return std::nullopt;
}

}  // namespace scalelab::server
