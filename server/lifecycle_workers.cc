// What workers say and hear: observations, assignments, the end of attempts, events.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/status.h"
#include "server/lifecycle.h"
#include "server/outcome.h"

namespace scalelab::server {

using AllocationPhase = db::AllocationState;

absl::Status Lifecycle::Observe(const std::string& allocation_token, const v1::SynchronizeRequest& request,
                                db::Micros now, Effects& fx) {
  const auto it = state_.allocation_by_token.find(allocation_token);
  if (it == state_.allocation_by_token.end()) {
    return MakeError(absl::StatusCode::kUnauthenticated, "ALLOCATION_OVER",
                     absl::StrCat("allocation ", allocation_token, " is over; the worker should exit"));
  }
  AllocationState& allocation = *state_.allocation(it->second);
  WorkerState& worker = allocation.workers[request.node_index()];
  worker.node = request.node();
  worker.instance = request.instance();
  worker.version = request.version();
  if (request.has_info()) worker.info = request.info();
  worker.last_seen = now;
  worker.leaving = request.leaving();
  if (request.node_index() == 0) allocation.last_seen = now;
  if (Waits(allocation.row.state)) {
    if (!allocation.cancel_sent) --state_.pending_allocations;
    allocation.row.state = AllocationPhase::kRunning;
    allocation.row.started = now;
    allocation.row.reason.clear();
    fx.batch.allocations.push_back(allocation.row);
  }
  if (request.node_index() == 0) {
    ObserveAttempt(allocation, worker, request, now, fx);
    Assign(allocation, now, fx);
  }
  return absl::OkStatus();
}

void Lifecycle::ObserveAttempt(AllocationState& allocation, const WorkerState& worker,
                               const v1::SynchronizeRequest& request, db::Micros now, Effects& fx) {
  AttemptState* attempt = state_.attempt(allocation.attempt_id);
  if (attempt == nullptr) return;
  using Status = v1::SynchronizeRequest::AttemptStatus;
  const auto status = std::find_if(request.attempts().begin(), request.attempts().end(),
                                   [&](const Status& s) { return s.token() == attempt->row.token; });
  if (status == request.attempts().end()) {
    // Never heard of it, and a worker of the same life will: it is in the desired state. But one that a
    // worker has had and a new worker does not know is gone.
    const bool started = attempt->row.state != db::AttemptState::kAssigned || attempt->reported;
    if (started && attempt->reported_by != worker.instance) {
      EndAttempt(*attempt, db::AttemptState::kFailed, db::Cause::kWorkerLost,
                 absl::StrCat("the worker on ", worker.node, " was restarted and does not know the attempt"),
                 now, fx);
    } else if (attempt->row.state == db::AttemptState::kStopping && !attempt->reported) {
      EndAttempt(*attempt, db::AttemptState::kCancelled, db::Cause::kNone, "", now, fx);
    }
    return;
  }
  attempt->reported = true;
  attempt->reported_by = worker.instance;
  if (status->state() == Status::RUNNING && attempt->row.state == db::AttemptState::kAssigned) {
    attempt->row.state = db::AttemptState::kRunning;
    attempt->row.started = now;
    fx.batch.attempts.push_back(attempt->row);
    ++state_.study(attempt->study_id)->revision;
    fx.changed_studies.insert(attempt->study_id);
  } else if (status->state() == Status::ENDED) {
    if (attempt->row.started == 0) attempt->row.started = attempt->row.assigned;
    attempt->row.exit_status = status->exit_status();
    const Outcome outcome = Judge(attempt->ranks, *status);
    // A run that had finished when it was told to stop is finished; everything else that we stopped is
    // cancelled.
    if (outcome.state == db::AttemptState::kSucceeded) attempt->row.parameter_hash = outcome.parameter_hash;
    const bool cancelled =
        attempt->row.state == db::AttemptState::kStopping && outcome.state != db::AttemptState::kSucceeded;
    if (cancelled) {
      EndAttempt(*attempt, db::AttemptState::kCancelled, db::Cause::kNone, "", now, fx);
    } else if (status->stopped() && outcome.state != db::AttemptState::kSucceeded) {
      EndAttempt(*attempt, db::AttemptState::kFailed, db::Cause::kWorkerLost,
                 absl::StrCat("the worker on ", worker.node, " was told to leave and stopped the attempt"),
                 now, fx);
    } else {
      EndAttempt(*attempt, outcome.state, outcome.cause, outcome.message, now, fx);
    }
  }
}

v1::SynchronizeResponse Lifecycle::Desired(const AllocationState& allocation, int node_index) const {
  v1::SynchronizeResponse response;
  response.set_generation(allocation.generation);
  response.set_terminate(allocation.row.state == AllocationPhase::kReleasing);
  const AttemptState* attempt = state_.attempt(allocation.attempt_id);
  if (attempt == nullptr) return response;
  const StudyState& study = *state_.study(attempt->study_id);
  auto* desired = response.add_attempts();
  desired->set_token(attempt->row.token);
  desired->set_stop(attempt->row.state == db::AttemptState::kStopping);
  desired->set_grace_seconds(5);
  *desired->mutable_spec() = study.cells[study.cell_of[attempt->position]].spec;
  desired->mutable_spec()->set_seed(desired->spec().seed() + study.runs[attempt->position].repeat);
  desired->set_directory(attempt->row.directory);
  for (const auto node : absl::StrSplit(attempt->row.nodes, ',')) desired->add_nodes(std::string(node));
  desired->set_ranks_per_node(allocation.row.ranks_per_node);
  desired->set_run(absl::StrCat("studies/", study.row.id, "/runs/", attempt->row.run_id));
  (void)node_index;  // every node gets the same picture and finds itself in `nodes`
  return response;
}

void Lifecycle::Assign(AllocationState& allocation, db::Micros now, Effects& fx) {
  const auto worker = allocation.workers.find(0);
  if (allocation.row.state != AllocationPhase::kRunning || allocation.attempt_id != 0 ||
      worker == allocation.workers.end() || worker->second.leaving) {
    return;
  }
  // Every node must be attached, else a rank's events would have nobody to follow them.
  if (static_cast<int>(allocation.workers.size()) < allocation.row.nodes) return;
  StudyState* study = state_.study(allocation.row.study_id);
  int position = -1;
  if (study != nullptr && allocation.row.run_id != 0) {
    for (const int p : study->queued) {
      if (study->runs[p].id == allocation.row.run_id) position = p;
    }
  } else if (study != nullptr && !study->queued.empty()) {
    position = *study->queued.begin();
  }
  if (position < 0) {
    Release(allocation, "nothing left to run", fx);
    return;
  }

  const CellState& cell = study->cells[study->cell_of[position]];
  db::RunRow& run = study->runs[position];
  auto attempt = std::make_unique<AttemptState>();
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

void Lifecycle::StopAttempt(AttemptState& attempt, db::Micros now, Effects& fx) {
  if (attempt.row.state == db::AttemptState::kStopping) return;
  attempt.row.state = db::AttemptState::kStopping;
  attempt.stopping_since = now;
  fx.batch.attempts.push_back(attempt.row);
  if (AllocationState* allocation = state_.allocation(attempt.row.allocation_id)) Wake(*allocation, fx);
}

// Asked at the end of an attempt: a worker may learn its software's versions only after its first words.
std::vector<v1::NodeInfo> Lifecycle::NodesOf(const AttemptState& attempt) const {
  std::vector<v1::NodeInfo> infos;
  const AllocationState* allocation = state_.allocation(attempt.row.allocation_id);
  if (allocation == nullptr) return infos;
  const auto nodes = std::count(attempt.row.nodes.begin(), attempt.row.nodes.end(), ',') + 1;
  for (const auto& [index, worker] : allocation->workers) {
    if (index < nodes) infos.push_back(worker.info);
  }
  return infos;
}

void Lifecycle::EndAttempt(AttemptState& attempt, db::AttemptState to, db::Cause cause, std::string message,
                           db::Micros now, Effects& fx) {
  StudyState& study = *state_.study(attempt.study_id);
  db::RunRow& run = study.runs[attempt.position];
  attempt.row.state = to;
  attempt.row.cause = cause;
  attempt.row.message = message;
  attempt.row.finished = now;
  fx.batch.attempts.push_back(attempt.row);
  if (const auto nodes = NodesOf(attempt); !nodes.empty()) {
    fx.batch.provenance.push_back({attempt.row.id, ProvenanceJson(nodes)});
  }
  const CellState& cell = study.cells[study.cell_of[attempt.position]];
  state_.waiting.Charge(study.row.owner,
                        1e-6 * static_cast<double>(now - attempt.row.assigned) * cell.spec.ranks() *
                            std::max(1, cell.spec.cpus_per_rank()),
                        absl::FromUnixMicros(now));

  run.cause = cause;
  run.message = message;
  if (to == db::AttemptState::kSucceeded) {
    fx.batch.summaries.push_back(
        Summarize(run.id, attempt.row.id, attempt.ranks, Fingerprint(NodesOf(attempt))));
    SetRunState(study, attempt.position, db::RunState::kSucceeded, now, fx);
  } else if (to == db::AttemptState::kCancelled || study.row.cancel_requested) {
    SetRunState(study, attempt.position, db::RunState::kCancelled, now, fx);
  } else if (run.attempts <= study.spec.retry().max() && Retries(study.spec.retry(), cause)) {
    run.message = absl::StrCat("attempt ", run.attempts, " failed (", message, "); it will be tried again");
    SetRunState(study, attempt.position, db::RunState::kQueued, now, fx);
  } else {
    SetRunState(study, attempt.position, db::RunState::kFailed, now, fx);
  }
  if (AllocationState* allocation = state_.allocation(attempt.row.allocation_id)) {
    allocation->attempt_id = 0;
    if (study.row.cancel_requested) Release(*allocation, "the study was cancelled", fx);
    Wake(*allocation, fx);
  }
  state_.attempt_by_token.erase(attempt.row.token);
  state_.attempts.erase(attempt.row.id);  // `attempt` is gone from here on
  UpdateStudy(study, now, fx);
}

std::vector<v1::ReportEventsResponse::Stream> Lifecycle::Ingest(std::vector<ParsedBatch> batches,
                                                                Effects& fx) {
  std::vector<v1::ReportEventsResponse::Stream> answers;
  answers.reserve(batches.size());
  for (ParsedBatch& batch : batches) {
    v1::ReportEventsResponse::Stream& answer = answers.emplace_back();
    answer.set_token(batch.token);
    answer.set_rank(batch.append.rank);
    const auto it = state_.attempt_by_token.find(batch.token);
    AttemptState* attempt = it == state_.attempt_by_token.end() ? nullptr : state_.attempt(it->second);
    if (attempt == nullptr || batch.append.rank < 0 ||
        batch.append.rank >= static_cast<int>(attempt->ranks.size())) {
      answer.set_outcome(v1::ReportEventsResponse::Stream::FENCED);
      continue;
    }
    RankState& rank = attempt->ranks[batch.append.rank];
    db::StreamRow& stream = rank.stream;
    db::StreamAppend& append = batch.append;
    const bool fits = append.begin_position == stream.position && append.begin_line == stream.line;
    const bool resent = append.end_position <= stream.position;
    answer.set_outcome(fits || resent ? v1::ReportEventsResponse::Stream::ACCEPTED
                                      : v1::ReportEventsResponse::Stream::GAP);
    if (fits && append.end_position > stream.position) {
      stream.position = append.end_position;
      stream.line = append.end_line;
      stream.malformed += append.malformed;
      if (append.finished) {
        stream.finished = true;
        stream.parameter_hash = append.parameter_hash;
      }
      if (!append.error_message.empty()) {
        stream.error_kind = append.error_kind;
        stream.error_message = append.error_message;
      }
      if (batch.finish_metrics) rank.finish_metrics = std::move(*batch.finish_metrics);
      if (append.rank == 0) {
        if (batch.total_steps) attempt->total_steps = *batch.total_steps;
        if (batch.last_step) attempt->step = *batch.last_step + 1;
        if (batch.last_loss) attempt->train_loss = batch.last_loss;
        ++state_.study(attempt->study_id)->revision;
        fx.changed_studies.insert(attempt->study_id);
      }
      append.attempt_id = attempt->row.id;
      for (db::EpochRow& epoch : batch.epochs) {
        epoch.attempt_id = attempt->row.id;
        fx.batch.epochs.push_back(std::move(epoch));
      }
      fx.batch.appends.push_back(std::move(append));
    }
    answer.set_position(stream.position);
    answer.set_line(stream.line);
  }
  return answers;
}

}  // namespace scalelab::server
