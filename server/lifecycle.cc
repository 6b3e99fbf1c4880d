#include "server/lifecycle.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/status.h"
#include "server/outcome.h"

namespace scalelab::server {

using db::AllocationState::kEnded;
using db::AllocationState::kIntended;
using db::AllocationState::kPending;
using db::AllocationState::kReleasing;
using AllocationPhase = db::AllocationState;

namespace {

bool Waits(AllocationPhase phase) { return phase == AllocationPhase::kIntended || phase == AllocationPhase::kPending; }

constexpr size_t kRememberedRequests = 10'000;

}  // namespace

absl::Status RequestIdReused(const std::string& request_id, int64_t study_id) {
  return MakeError(absl::StatusCode::kAlreadyExists, "REQUEST_ID_REUSED",
                   absl::StrCat("request id '", request_id, "' has already made studies/", study_id,
                                " from a different specification; use a new request id"));
}

// --- requests of users -------------------------------------------------------------------------------------------

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
  const auto run = std::find_if(study->runs.begin(), study->runs.end(), [&](const auto& r) { return r.id == run_id; });
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

// --- workers -----------------------------------------------------------------------------------------------------

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
    // Never heard of it, and a worker of the same life will: it is in the desired state. But one that a worker has
    // had and a new worker does not know is gone.
    const bool started = attempt->row.state != db::AttemptState::kAssigned || attempt->reported;
    if (started && attempt->reported_by != worker.instance) {
      EndAttempt(*attempt, db::AttemptState::kFailed, db::Cause::kWorkerLost,
                 absl::StrCat("the worker on ", worker.node, " was restarted and does not know the attempt"), now, fx);
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
    // A run that had finished when it was told to stop is finished; everything else that we stopped is cancelled.
    if (outcome.state == db::AttemptState::kSucceeded) attempt->row.parameter_hash = outcome.parameter_hash;
    const bool cancelled = attempt->row.state == db::AttemptState::kStopping &&
                           outcome.state != db::AttemptState::kSucceeded;
    if (cancelled) {
      EndAttempt(*attempt, db::AttemptState::kCancelled, db::Cause::kNone, "", now, fx);
    } else if (status->stopped() && outcome.state != db::AttemptState::kSucceeded) {
      EndAttempt(*attempt, db::AttemptState::kFailed, db::Cause::kWorkerLost,
                 absl::StrCat("the worker on ", worker.node, " was told to leave and stopped the attempt"), now, fx);
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
    fx.batch.summaries.push_back(Summarize(run.id, attempt.row.id, attempt.ranks, Fingerprint(NodesOf(attempt))));
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

std::vector<v1::ReportEventsResponse::Stream> Lifecycle::Ingest(std::vector<ParsedBatch> batches, Effects& fx) {
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

// --- scheduler ---------------------------------------------------------------------------------------------------

void Lifecycle::Plan(db::Micros now, Effects& fx) {
  while (state_.pending_allocations < options_.max_pending_allocations) {
    const auto next = state_.waiting.Next(absl::FromUnixMicros(now));
    if (!next) return;
    StudyState& study = *state_.study(*next);
    auto allocation = std::make_unique<AllocationState>();
    db::AllocationRow& row = allocation->row;
    row.id = ++state_.last_allocation_id;
    row.token = options_.new_token();
    row.study_id = study.row.id;
    AllocationShape shape = study.shape;
    if (study.spec.allocation() == v1::StudySpec::PER_RUN) {
      std::set<int64_t> served;
      for (const int64_t id : study.allocations) served.insert(state_.allocation(id)->row.run_id);
      for (const int position : study.queued) {
        if (served.contains(study.runs[position].id)) continue;
        row.run_id = study.runs[position].id;
        shape = ShapeOf(study.cells[study.cell_of[position]].spec, study.spec.resources());
        break;
      }
    }
    row.nodes = shape.nodes;
    row.ranks_per_node = shape.ranks_per_node;
    row.cpus_per_rank = shape.cpus_per_rank;
    row.gpus_per_rank = shape.gpus_per_rank;
    row.created = now;
    allocation->generation = ++state_.last_generation;
    allocation->submitted = true;
    ++state_.pending_allocations;
    study.allocations.insert(row.id);
    fx.batch.allocations.push_back(row);
    fx.submit.push_back(RequestFor(*allocation));
    state_.allocation_by_token[row.token] = row.id;
    state_.allocations.emplace(row.id, std::move(allocation));
    UpdateWaiting(study);
  }
}

JobRequest Lifecycle::RequestFor(const AllocationState& allocation) const {
  JobRequest request;
  const db::AllocationRow& row = allocation.row;
  request.token = row.token;
  request.nodes = row.nodes;
  request.ranks_per_node = row.ranks_per_node;
  request.cpus_per_rank = row.cpus_per_rank;
  request.gpus_per_rank = row.gpus_per_rank;
  if (const StudyState* study = state_.study(row.study_id)) {
    const v1::Resources& resources = study->spec.resources();
    request.study = study->row.name;
    request.time_limit = absl::Seconds(resources.time_seconds() > 0 ? resources.time_seconds() : 3600);
    request.partition = resources.partition();
    request.exclusive = resources.exclusive();
    request.memory_mib = resources.memory_mib();
    for (const auto& [key, value] : study->spec.slurm().sbatch_options()) request.options.emplace_back(key, value);
  }
  return request;
}

void Lifecycle::JobSubmitted(const std::string& token, const absl::StatusOr<std::string>& external_id, db::Micros now,
                             Effects& fx) {
  const auto it = state_.allocation_by_token.find(token);
  if (it == state_.allocation_by_token.end()) return;
  AllocationState& allocation = *state_.allocation(it->second);
  if (external_id.ok()) {
    allocation.row.external_id = *external_id;
    if (allocation.row.state == AllocationPhase::kIntended) allocation.row.state = AllocationPhase::kPending;
    fx.batch.allocations.push_back(allocation.row);
    return;
  }
  const std::string reason(external_id.status().message());
  if (absl::IsInvalidArgument(external_id.status()) || absl::IsPermissionDenied(external_id.status())) {
    StudyState* study = state_.study(allocation.row.study_id);
    EndAllocation(allocation, db::Cause::kLaunchError, reason, now, fx);
    if (study != nullptr) FailQueued(*study, absl::StrCat("the scheduler refused: ", reason), now, fx);
    return;
  }
  // Not now: say why, and ask again.
  allocation.submitted = false;
  allocation.retry_at = now + 5'000'000;
  allocation.row.reason = reason;
  fx.batch.allocations.push_back(allocation.row);
}

void Lifecycle::JobsPolled(const std::vector<JobStatus>& jobs, db::Micros now, Effects& fx) {
  using Job = JobStatus::State;
  for (const JobStatus& job : jobs) {
    const auto it = state_.allocation_by_token.find(job.token);
    if (it == state_.allocation_by_token.end()) continue;
    AllocationState& allocation = *state_.allocation(it->second);
    db::AllocationRow& row = allocation.row;
    if (job.state == Job::kPending || job.state == Job::kRunning) {
      const bool starts = job.state == Job::kRunning && Waits(row.state);
      if (starts) {
        if (!allocation.cancel_sent) --state_.pending_allocations;
        row.state = AllocationPhase::kRunning;
        row.started = now;
        allocation.last_seen = now;
      }
      if (starts || row.reason != job.reason || row.external_id != job.external_id) {
        row.reason = job.reason;
        row.external_id = job.external_id;
        fx.batch.allocations.push_back(row);
      }
      if (allocation.cancel_sent) fx.cancel.push_back(row.token);  // the wish may have been lost
    } else if (job.state == Job::kUnknown && Waits(row.state)) {
      if (allocation.cancel_sent) {
        EndAllocation(allocation, db::Cause::kAllocationCancelled, "cancelled before it began", now, fx);
      } else if (allocation.retry_at <= now) {
        allocation.submitted = true;
        fx.submit.push_back(RequestFor(allocation));
      }
    } else {
      static const std::map<Job, db::Cause> kCauses = {
          {Job::kTimeout, db::Cause::kTimeout},     {Job::kPreempted, db::Cause::kPreempted},
          {Job::kNodeFail, db::Cause::kNodeFail},   {Job::kOutOfMemory, db::Cause::kOutOfMemory},
          {Job::kBootFail, db::Cause::kBootFail},   {Job::kDeadline, db::Cause::kDeadline},
          {Job::kCancelled, db::Cause::kAllocationCancelled}};
      const auto cause = kCauses.find(job.state);
      // A job that we ended ourselves for silence counts as a lost worker.
      const bool ours = allocation.cancel_sent || cause == kCauses.end();
      EndAllocation(allocation, ours ? db::Cause::kWorkerLost : cause->second,
                    job.reason.empty() ? "its allocation ended" : job.reason, now, fx);
    }
  }
}

void Lifecycle::EndAllocation(AllocationState& allocation, db::Cause cause, const std::string& reason, db::Micros now,
                              Effects& fx) {
  if (Waits(allocation.row.state) && !allocation.cancel_sent) --state_.pending_allocations;
  allocation.row.state = kEnded;
  allocation.row.ended = now;
  if (!reason.empty()) allocation.row.reason = reason;
  fx.batch.allocations.push_back(allocation.row);
  fx.woken.insert(allocation.row.id);
  const int64_t id = allocation.row.id;
  const int64_t attempt_id = allocation.attempt_id;
  StudyState* study = state_.study(allocation.row.study_id);  // null when the study is over
  if (study != nullptr) study->allocations.erase(id);
  state_.allocation_by_token.erase(allocation.row.token);
  state_.allocations.erase(id);  // `allocation` is gone from here on
  if (AttemptState* attempt = state_.attempt(attempt_id)) {
    const bool stopping = attempt->row.state == db::AttemptState::kStopping;
    EndAttempt(*attempt, stopping ? db::AttemptState::kCancelled : db::AttemptState::kFailed,
               stopping ? db::Cause::kNone : cause, stopping ? "" : reason, now, fx);
  }
  if (study != nullptr) UpdateWaiting(*study);
}

void Lifecycle::Release(AllocationState& allocation, const std::string& reason, Effects& fx) {
  if (allocation.row.state == kReleasing) return;
  if (Waits(allocation.row.state)) {
    EndJob(allocation, fx);
    return;
  }
  allocation.row.state = kReleasing;
  allocation.row.reason = reason;
  fx.batch.allocations.push_back(allocation.row);
  Wake(allocation, fx);
}

void Lifecycle::EndJob(AllocationState& allocation, Effects& fx) {
  if (!allocation.cancel_sent && Waits(allocation.row.state)) --state_.pending_allocations;
  allocation.cancel_sent = true;
  fx.cancel.push_back(allocation.row.token);
}

void Lifecycle::FailQueued(StudyState& study, const std::string& message, db::Micros now, Effects& fx) {
  const std::vector<int> queued(study.queued.begin(), study.queued.end());
  for (const int position : queued) {
    study.runs[position].cause = db::Cause::kLaunchError;
    study.runs[position].message = message;
    SetRunState(study, position, db::RunState::kFailed, now, fx);
  }
  UpdateStudy(study, now, fx);
}

std::vector<std::string> Lifecycle::JobsToPoll() const {
  std::vector<std::string> tokens;
  tokens.reserve(state_.allocations.size());
  for (const auto& [id, allocation] : state_.allocations) tokens.push_back(allocation->row.token);
  return tokens;
}

// --- time --------------------------------------------------------------------------------------------------------

void Lifecycle::Tick(db::Micros now, Effects& fx) {
  for (const auto& [id, allocation] : state_.allocations) {
    if (allocation->row.state == kIntended && !allocation->submitted && allocation->retry_at <= now) {
      allocation->submitted = true;
      fx.submit.push_back(RequestFor(*allocation));
    }
    const bool live = allocation->row.state == AllocationPhase::kRunning || allocation->row.state == kReleasing;
    if (live && !allocation->cancel_sent && now - allocation->last_seen > options_.worker_timeout) {
      allocation->row.reason = absl::StrCat("its worker was silent for ",
                                            (now - allocation->last_seen) / 1'000'000, " s");
      fx.batch.allocations.push_back(allocation->row);
      EndJob(*allocation, fx);
    }
    const AttemptState* attempt = state_.attempt(allocation->attempt_id);
    if (attempt != nullptr && attempt->row.state == db::AttemptState::kStopping && !allocation->cancel_sent &&
        now - attempt->stopping_since > options_.stop_timeout) {
      EndJob(*allocation, fx);
    }
  }
  Plan(now, fx);
}

void Lifecycle::Forgive(db::Micros gap) {
  for (const auto& [id, allocation] : state_.allocations) allocation->last_seen += gap;
  for (const auto& [id, attempt] : state_.attempts) {
    if (attempt->stopping_since != 0) attempt->stopping_since += gap;
  }
}

// --- bookkeeping -------------------------------------------------------------------------------------------------

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
    if (allocation.row.state != kReleasing && !allocation.cancel_sent) ++serving;
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
