// The beginning and the end of attempts.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/lifecycle.h"
#include "server/core/outcome.h"

namespace scalelab::server {

bool FitsInto(const LiveAllocation& allocation, const LiveStudy& study, int position, db::Micros now) {
  // The first run of an allocation always fits: no allocation of this study has more time left.
  if (allocation.ends_at == 0 || allocation.served == 0) return true;
  db::Micros needed = study.longest[study.cell_of[position]];
  if (needed == 0) needed = *std::max_element(study.longest.begin(), study.longest.end());
  return now + needed + needed / 10 + EndMargin(allocation) <= allocation.ends_at;
}

// Returns the position of the first queued run that fits, or -1.
int Lifecycle::Choose(const LiveStudy& study, const LiveAllocation& allocation, db::Micros now) const {
  for (const int position : study.queued) {
    if (allocation.row.run_id != 0 && study.runs[position].id != allocation.row.run_id) continue;
    if (FitsInto(allocation, study, position, now)) return position;
  }
  return -1;
}

void Lifecycle::Assign(LiveAllocation& allocation, db::Micros now, Effects& fx) {
  if (allocation.row.state != db::AllocationState::kRunning || allocation.attempt_id != 0 ||
      allocation.cancel_sent || allocation.ending || allocation.leaving_since != 0) {
    return;
  }
  // Every node needs its worker, which follows the event files of the node's ranks.
  if (static_cast<int>(allocation.workers.size()) < allocation.row.nodes) return;
  LiveStudy* study = state_.study(allocation.row.study_id);
  const bool paused = study != nullptr && !study->row.pause_reason.empty();
  const int position = study == nullptr || paused ? -1 : Choose(*study, allocation, now);
  if (paused) {
    Release(allocation, "the study is paused", now, fx);
    return;
  }
  if (position < 0) {
    const bool too_late = study != nullptr && !study->queued.empty() && allocation.row.run_id == 0;
    Release(allocation, too_late ? "no queued run would end before its time limit" : "no run is queued", now,
            fx);
    if (study != nullptr) UpdateWaiting(*study, now);
    return;
  }
  ++allocation.served;
  study->failed_allocations.erase(allocation.row.run_id);

  const CellState& cell = study->cells[study->cell_of[position]];
  db::RunRow& run = study->runs[position];
  auto attempt = std::make_unique<LiveAttempt>();
  attempt->study_id = study->row.id;
  attempt->position = position;
  db::AttemptRow& row = attempt->row;
  row.id = ++state_.last_attempt_id;
  row.run_id = run.id;
  row.number = ++run.attempts;
  row.token = options_.new_token();
  row.allocation_id = allocation.row.id;
  row.assigned = now;
  row.directory = absl::StrCat(options_.runs_dir, "/", study->row.id, "/", run.id, "/", row.token);
  const int nodes = (cell.spec.ranks() + allocation.row.ranks_per_node - 1) / allocation.row.ranks_per_node;
  for (int n = 0; n < nodes; ++n) absl::StrAppend(&row.nodes, n == 0 ? "" : ",", allocation.workers[n].node);
  attempt->ranks.resize(cell.spec.ranks());
  for (int r = 0; r < cell.spec.ranks(); ++r) {
    attempt->ranks[r].stream.attempt_id = row.id;
    attempt->ranks[r].stream.rank = r;
  }
  run.started = now;
  run.cause = db::Cause::kNone;
  run.message.clear();
  if (study->row.started == 0) {
    study->row.started = now;
    study->row.state = db::StudyState::kRunning;
    fx.batch.studies.push_back(study->row);
  }
  SetRunState(*study, position, db::RunState::kRunning, now, fx);
  fx.batch.attempts.push_back(row);
  allocation.attempt_id = row.id;
  state_.attempt_by_token[row.token] = row.id;
  state_.attempts.emplace(row.id, std::move(attempt));
  Wake(allocation, fx);
}

void Lifecycle::StopAttempt(LiveAttempt& attempt, db::Micros now, Effects& fx) {
  if (attempt.row.state == db::AttemptState::kStopping) return;
  attempt.row.state = db::AttemptState::kStopping;
  attempt.stopping_since = now;
  fx.batch.attempts.push_back(attempt.row);
  if (LiveAllocation* allocation = state_.allocation(attempt.row.allocation_id)) Wake(*allocation, fx);
}

// Returns the hardware and software of the attempt's nodes. Called at the end of an attempt: a worker
// may detect software versions after its first report, and it reports those of a framework's ranks
// with their end.
std::vector<v1::NodeInfo> Lifecycle::NodesOf(const LiveAttempt& attempt) const {
  std::vector<v1::NodeInfo> infos;
  const LiveAllocation* allocation = state_.allocation(attempt.row.allocation_id);
  if (allocation == nullptr) return infos;
  for (const auto& [index, worker] : allocation->workers) {
    if (index < attempt.nodes()) infos.push_back(worker.info);
  }
  if (const auto launched = attempt.ended.find(0); launched != attempt.ended.end()) {
    for (v1::NodeInfo& info : infos) {
      for (const auto& [name, version] : launched->second.software())
        (*info.mutable_software())[name] = version;
    }
  }
  return infos;
}

void Lifecycle::EndAttempt(LiveAttempt& attempt, db::AttemptState to, db::Cause cause, std::string message,
                           db::Micros now, Effects& fx) {
  LiveStudy& study = *state_.study(attempt.study_id);
  db::RunRow& run = study.runs[attempt.position];
  attempt.row.state = to;
  attempt.row.cause = cause;
  attempt.row.message = message;
  attempt.row.finished = now;
  fx.batch.attempts.push_back(attempt.row);
  if (const auto nodes = NodesOf(attempt); !nodes.empty()) {
    fx.batch.provenance.push_back({attempt.row.id, ProvenanceJson(nodes)});
  }
  run.cause = cause;
  run.message = message;
  if (to == db::AttemptState::kSucceeded) {
    fx.batch.summaries.push_back(
        Summarize(run.id, attempt.row.id, attempt.ranks, Fingerprint(NodesOf(attempt))));
    db::Micros& longest = study.longest[study.cell_of[attempt.position]];
    longest = std::max(longest, now - attempt.row.assigned);
    SetRunState(study, attempt.position, db::RunState::kSucceeded, now, fx);
  } else if (to == db::AttemptState::kCancelled || study.row.cancel_requested) {
    SetRunState(study, attempt.position, db::RunState::kCancelled, now, fx);
  } else if (cause == db::Cause::kStorageError) {
    // Not the run's fault, and the next run would fail the same way.
    ++run.uncounted;
    run.message = absl::StrCat("attempt ", run.attempts, " failed (", message, "); it will be tried again");
    SetRunState(study, attempt.position, db::RunState::kQueued, now, fx);
  } else if (run.attempts - run.uncounted <= study.spec.retry().max() &&
             (attempt.cut_short || Retries(study.spec.retry(), cause))) {
    run.message = absl::StrCat("attempt ", run.attempts, " failed (", message, "); it will be tried again");
    SetRunState(study, attempt.position, db::RunState::kQueued, now, fx);
  } else {
    SetRunState(study, attempt.position, db::RunState::kFailed, now, fx);
    PauseIfAllFail(study, cause, message, now, fx);
  }
  study.storage_errors = cause == db::Cause::kStorageError ? study.storage_errors + 1 : 0;
  if (study.storage_errors >= options_.max_storage_errors) {
    Pause(study,
          absl::StrCat(study.storage_errors, " attempts in a row could not write their files: ", message),
          now, fx);
  }
  if (LiveAllocation* allocation = state_.allocation(attempt.row.allocation_id)) {
    allocation->attempt_id = 0;
    if (study.row.cancel_requested) Release(*allocation, "the study was cancelled", now, fx);
    Wake(*allocation, fx);
  }
  state_.attempt_by_token.erase(attempt.row.token);
  state_.attempts.erase(attempt.row.id);  // invalidates `attempt`
  UpdateStudy(study, now, fx);
}

}  // namespace scalelab::server
