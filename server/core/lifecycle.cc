#include "server/core/lifecycle.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/status.h"

namespace scalelab::server {

using AllocationPhase = db::AllocationState;

namespace {

constexpr size_t kRememberedRequests = 10'000;

}  // namespace

absl::Status RequestIdReused(const std::string& request_id, int64_t study_id) {
  return MakeError(absl::StatusCode::kAlreadyExists, "REQUEST_ID_REUSED",
                   absl::StrCat("request id '", request_id, "' has already made studies/", study_id,
                                " from a different specification; use a new request id"));
}

absl::StatusOr<int64_t> Lifecycle::Submit(NewStudy study, db::Micros now, Effects& fx) {
  db::StudyRow& row = study.state->row;
  if (!row.request_id.empty()) {
    const std::string key = absl::StrCat(row.owner, "\n", row.request_id);
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
  for (size_t i = 0; i < study.cells.size(); ++i) {
    db::CellRow& cell = study.cells[i];
    cell.id = ++state_.last_cell_id;
    cell.study_id = row.id;
    if (i < study.state->cells.size()) study.state->cells[i].id = cell.id;
    fx.batch.cells.push_back(std::move(cell));
  }
  for (size_t p = 0; p < study.state->runs.size(); ++p) {
    db::RunRow& run = study.state->runs[p];
    run.id = ++state_.last_run_id;
    run.study_id = row.id;
    run.cell_id = study.state->cells[study.state->cell_of[p]].id;
    run.position = static_cast<int>(p);
    study.state->queued.insert(study.state->queued.end(), run.position);
    fx.batch.runs.push_back(run);
  }
  study.state->counts[static_cast<int>(db::RunState::kQueued)] = row.runs;
  StudyState& kept = *study.state;
  state_.studies.emplace(row.id, std::move(study.state));
  UpdateWaiting(kept);
  fx.changed_studies.insert(kept.row.id);
  return kept.row.id;
}

absl::Status Lifecycle::CancelStudy(int64_t study_id, db::Micros now, Effects& fx) {
  StudyState* study = state_.study(study_id);
  if (study == nullptr) return absl::OkStatus();  // final already
  study->row.cancel_requested = true;
  fx.batch.studies.push_back(study->row);
  const std::vector<int> queued(study->queued.begin(), study->queued.end());
  for (const int position : queued) SetRunState(*study, position, db::RunState::kCancelled, now, fx);
  const std::vector<int64_t> allocations(study->allocations.begin(), study->allocations.end());
  for (const int64_t id : allocations) {
    AllocationState& allocation = *state_.allocation(id);
    if (AttemptState* attempt = state_.attempt(allocation.attempt_id)) {
      StopAttempt(*attempt, now, fx);
    } else {
      Release(allocation, "the study was cancelled", fx);
    }
  }
  UpdateStudy(*study, now, fx);
  return absl::OkStatus();
}

absl::Status Lifecycle::CancelRun(int64_t study_id, int64_t run_id, db::Micros now, Effects& fx) {
  StudyState* study = state_.study(study_id);
  if (study == nullptr) return absl::OkStatus();
  const auto run =
      std::find_if(study->runs.begin(), study->runs.end(), [&](const auto& r) { return r.id == run_id; });
  if (run == study->runs.end() || IsFinal(run->state)) return absl::OkStatus();
  if (run->state == db::RunState::kQueued) {
    SetRunState(*study, run->position, db::RunState::kCancelled, now, fx);
    UpdateStudy(*study, now, fx);
    return absl::OkStatus();
  }
  for (const int64_t id : study->allocations) {
    AttemptState* attempt = state_.attempt(state_.allocation(id)->attempt_id);
    if (attempt != nullptr && attempt->position == run->position) StopAttempt(*attempt, now, fx);
  }
  return absl::OkStatus();
}

void Lifecycle::Tick(db::Micros now, Effects& fx) {
  for (const auto& [id, allocation] : state_.allocations) {
    if (allocation->row.state == AllocationPhase::kIntended && !allocation->submitted &&
        allocation->retry_at <= now) {
      allocation->submitted = true;
      fx.submit.push_back(RequestOf(*allocation));
    }
    WatchOver(*allocation, now, fx);
    AttemptState* attempt = state_.attempt(allocation->attempt_id);
    if (attempt != nullptr && attempt->row.state == db::AttemptState::kStopping && !allocation->cancel_sent &&
        now - attempt->stopping_since > options_.stop_timeout) {
      EndJob(*allocation, fx);
    }
    // The scheduler does not say: what the worker said has to do.
    if (attempt != nullptr && attempt->held_since != 0 && allocation->leaving_since == 0 &&
        now - attempt->held_since > options_.hold_timeout) {
      Conclude(*allocation, *attempt, now, fx);
    }
  }
  Plan(now, fx);
}

// Gives up an allocation one of whose workers is silent.
void Lifecycle::WatchOver(AllocationState& allocation, db::Micros now, Effects& fx) {
  db::AllocationRow& row = allocation.row;
  const bool live = row.state == AllocationPhase::kRunning || row.state == AllocationPhase::kReleasing;
  if (!live || allocation.cancel_sent) return;
  for (int node = 0; node < row.nodes; ++node) {
    const auto worker = allocation.workers.find(node);
    if (worker != allocation.workers.end()) {
      const db::Micros silence = now - worker->second.last_seen;
      if (silence <= options_.worker_timeout) continue;
      row.reason =
          absl::StrCat("its worker on ", worker->second.node, " was silent for ", silence / 1'000'000, " s");
    } else {
      if (now <= std::max(row.started + options_.start_timeout,
                          allocation.listening_since + options_.worker_timeout)) {
        continue;
      }
      row.reason = absl::StrCat("no word from ", row.nodes - static_cast<int>(allocation.workers.size()),
                                " of its ", row.nodes, " workers");
    }
    fx.batch.allocations.push_back(row);
    EndJob(allocation, fx);
    return;
  }
}

// Whether one of its workers spoke lately: then it is not over, whatever anybody says.
bool Lifecycle::Heard(const AllocationState& allocation, db::Micros now) const {
  return std::any_of(allocation.workers.begin(), allocation.workers.end(), [&](const auto& worker) {
    return now - worker.second.last_seen <= options_.worker_timeout;
  });
}

void Lifecycle::Forgive(db::Micros gap) {
  for (const auto& [id, allocation] : state_.allocations) {
    allocation->listening_since += gap;
    for (auto& [node, worker] : allocation->workers) worker.last_seen += gap;
  }
  for (const auto& [id, attempt] : state_.attempts) {
    if (attempt->held_since != 0) attempt->held_since += gap;
    if (attempt->stopping_since != 0) attempt->stopping_since += gap;
  }
}

// --- bookkeeping
// -------------------------------------------------------------------------------------------------

void Lifecycle::Wake(AllocationState& allocation, Effects& fx) {
  allocation.generation = ++state_.last_generation;
  fx.woken.insert(allocation.row.id);
}

void Lifecycle::SetRunState(StudyState& study, int position, db::RunState to, db::Micros now, Effects& fx) {
  db::RunRow& run = study.runs[position];
  --study.counts[static_cast<int>(run.state)];
  ++study.counts[static_cast<int>(to)];
  if (run.state == db::RunState::kQueued) study.queued.erase(position);
  if (to == db::RunState::kQueued) study.queued.insert(position);
  run.state = to;
  if (IsFinal(to)) run.finished = now;
  fx.batch.runs.push_back(run);
  ++study.revision;
  fx.changed_studies.insert(study.row.id);
}

void Lifecycle::UpdateStudy(StudyState& study, db::Micros now, Effects& fx) {
  using db::RunState;
  UpdateWaiting(study);
  const auto count = [&](RunState s) { return study.counts[static_cast<int>(s)]; };
  if (count(RunState::kQueued) + count(RunState::kRunning) > 0) return;
  study.row.state = study.row.cancel_requested && count(RunState::kCancelled) > 0 ? db::StudyState::kCancelled
                    : count(RunState::kFailed) > 0                                ? db::StudyState::kFailed
                    : count(RunState::kCancelled) > 0                             ? db::StudyState::kCancelled
                                                      : db::StudyState::kSucceeded;
  study.row.finished = now;
  ++study.revision;
  fx.batch.studies.push_back(study.row);
  fx.changed_studies.insert(study.row.id);
  state_.waiting.Remove(study.row.id);
  for (const int64_t id : std::vector<int64_t>(study.allocations.begin(), study.allocations.end())) {
    Release(*state_.allocation(id), "the study is over", fx);
  }
}

void Lifecycle::UpdateWaiting(StudyState& study) {
  // Allocations that will not serve it any more do not count.
  size_t serving = 0;
  for (const int64_t id : study.allocations) {
    const AllocationState& allocation = *state_.allocation(id);
    if (allocation.row.state != AllocationPhase::kReleasing && !allocation.cancel_sent) ++serving;
  }
  const bool per_run = study.spec.allocation() == v1::StudySpec::PER_RUN;
  size_t wanted = study.queued.size();
  if (!per_run) {
    const bool running = study.counts[static_cast<int>(db::RunState::kRunning)] > 0;
    wanted = study.queued.empty() && !running ? 0 : 1;
  } else {
    wanted += static_cast<size_t>(study.counts[static_cast<int>(db::RunState::kRunning)]);
  }
  const int cap = study.spec.limits().concurrent_allocations();
  if (cap > 0) wanted = std::min(wanted, static_cast<size_t>(cap));
  if (!study.queued.empty() && serving < wanted && !study.row.cancel_requested) {
    state_.waiting.Add(study.row.id, study.row.priority, study.row.owner);
  } else {
    state_.waiting.Remove(study.row.id);
  }
}

}  // namespace scalelab::server
