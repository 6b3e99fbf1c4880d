// Implements the functions of Lifecycle that handle reports of workers: observed and desired state, the end
// of attempts, events.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "catalog/device.h"
#include "db/stream.h"
#include "planted/bug.h"
#include "proto/status.h"
#include "server/core/lifecycle.h"
#include "server/core/outcome.h"

namespace scalelab::server {
namespace {

// The defaults of NoiseGuard, in seconds.
constexpr double kCalibration = 0.1, kCalibrationInterval = 10;

// Returns whether an earlier worker had the attempt, which the worker of the request does not report. A worker that has not
// received the attempt yet does not report it either: then it gets the attempt with the next desired state. Therefore a report
// shows nothing if the worker sent it before it received the current desired state.
bool IsLost(const LiveAttempt& attempt, const LiveAllocation& allocation,
            const v1::SynchronizeRequest& request) {
  if (attempt.reported) return attempt.reported_by != request.instance();
  if (attempt.row.state != db::AttemptState::kStopping) return false;
  if (!attempt.assigned_to.empty()) return attempt.assigned_to != request.instance();
  return request.generation() == 0 || request.generation() == allocation.generation;
}

// Returns whether the ranks of the attempt have ended without an error, and were not stopped.
bool FinishedOnFirstNode(const LiveAttempt& attempt) {
  const auto first = attempt.ended.find(0);
  return first != attempt.ended.end() && attempt.row.state != db::AttemptState::kStopping &&
         first->second.exit_status() == 0 && first->second.cause() == v1::Attempt::CAUSE_UNSPECIFIED &&
         !first->second.stopped();
}

}  // namespace

absl::Status Lifecycle::Observe(const std::string& allocation_token, const v1::SynchronizeRequest& request,
                                db::Micros now, Effects& fx) {
  const auto it = state_.allocation_by_token.find(allocation_token);
  if (it == state_.allocation_by_token.end()) {
    return MakeError(absl::StatusCode::kUnauthenticated, "ALLOCATION_OVER",
                     absl::StrCat("allocation ", allocation_token, " is over; the worker should exit"));
  }
  LiveAllocation& allocation = *state_.allocation(it->second);
  if (request.node_index() < 0 || request.node_index() >= allocation.row.nodes) {
    return absl::InvalidArgumentError(absl::StrCat("node_index is ", request.node_index(),
                                                   ", and allocation ", allocation_token, " has ",
                                                   allocation.row.nodes, " nodes, counted from 0"));
  }
  if (allocation.replaced.contains(request.instance()) && !Planted(Bug::kReplacedWorkerAccepted)) {
    return MakeError(
        absl::StatusCode::kUnauthenticated, "WORKER_REPLACED",
        absl::StrCat("another worker of allocation ", allocation_token, " has replaced this one on node ",
                     request.node_index(), "; the worker should exit"));
  }
  const auto known = allocation.workers.find(request.node_index());
  if (known != allocation.workers.end() && known->second.instance != request.instance()) {
    // The job was started again, perhaps on other nodes. Wait until the workers of all nodes
    // have reported again.
    for (const auto& [node, worker] : allocation.workers) allocation.replaced.insert(worker.instance);
    allocation.workers.clear();
    allocation.listening_since = now;
  }
  WorkerState& worker = allocation.workers[request.node_index()];
  EndAttemptElsewhere(allocation, request, now, fx);
  worker.node = request.node();
  worker.instance = request.instance();
  worker.version = request.version();
  const bool new_info =
      request.has_info() && worker.info.SerializeAsString() != request.info().SerializeAsString();
  if (new_info) worker.info = request.info();
  worker.last_seen = now;
  worker.leaving = request.leaving();
  worker.queue_limit = request.queue_limit();
  if (worker.leaving && allocation.leaving_since == 0) {
    allocation.leaving_since = now;
    fx.poll = true;
  }
  if (Waits(allocation.row.state)) {
    LeavePending(allocation);
    allocation.row.state = db::AllocationState::kRunning;
    allocation.row.started = now;
    allocation.listening_since = now;
    allocation.row.reason.clear();
    fx.batch.allocations.push_back(allocation.row);
  }
  for (LiveAttempt* attempt : state_.attempts_of(allocation)) ObserveReported(*attempt, request);
  ObserveStop(allocation, request.node_index(), now);
  // One report may contain the ends of several attempts.
  for (int64_t served = 0; served != allocation.attempt_id;) {
    served = allocation.attempt_id;
    ObserveAttempt(allocation, worker, request, now, fx);
  }
  LiveAttempt* attempt = state_.attempt(allocation.attempt_id);
  if (new_info && attempt != nullptr && !attempt->recovery &&
      attempt->row.state == db::AttemptState::kRunning) {
    RecordHardware(*attempt, fx);
  }
  Assign(allocation, now, fx);
  return absl::OkStatus();
}

// Ends the attempts of the allocation that were assigned to a different node than the node of this worker.
void Lifecycle::EndAttemptElsewhere(const LiveAllocation& allocation, const v1::SynchronizeRequest& request,
                                    db::Micros now, Effects& fx) {
  for (LiveAttempt* attempt : state_.attempts_of(allocation)) {
    if (request.node_index() >= attempt->nodes()) continue;
    const std::vector<std::string> nodes = absl::StrSplit(attempt->row.nodes, ',');
    if (nodes[request.node_index()] == request.node()) continue;
    EndWithoutWorkers(*attempt, db::Cause::kWorkerLost, "its job was started again on other nodes", now, fx);
  }
}

// Records that a worker has received an attempt that it will begin later.
void Lifecycle::ObserveReported(LiveAttempt& attempt, const v1::SynchronizeRequest& request) {
  if (!attempt.assigned_ahead) return;
  const bool has = std::any_of(request.attempts().begin(), request.attempts().end(),
                               [&](const auto& status) { return status.token() == attempt.row.token; });
  if (!has) return;
  attempt.reported = true;
  attempt.reported_by = request.instance();
}

// Restarts the timeout of a stop at the first report of each worker. Before it, the worker may not have received
// the request to stop, because the job was suspended or the network was interrupted.
void Lifecycle::ObserveStop(const LiveAllocation& allocation, int node, db::Micros now) {
  if (!IsNeededByOthers(allocation)) return;
  for (LiveAttempt* attempt : state_.attempts_of(allocation)) {
    if (attempt->row.state == db::AttemptState::kStopping && node < attempt->nodes() &&
        attempt->stop_sent.insert(node).second)
      attempt->stopping_since = now;
  }
}

// Stores the hardware of the attempt's nodes, for the case that no worker reports its end.
void Lifecycle::RecordHardware(LiveAttempt& attempt, Effects& fx) {
  attempt.hardware = NodesOf(attempt);
  if (!attempt.hardware.empty())
    fx.batch.provenance.push_back({attempt.row.id, ProvenanceJson(attempt.hardware, {}, attempt.code)});
}

void Lifecycle::ObserveAttempt(LiveAllocation& allocation, const WorkerState& worker,
                               const v1::SynchronizeRequest& request, db::Micros now, Effects& fx) {
  LiveAttempt* attempt = state_.attempt(allocation.attempt_id);
  const int node = request.node_index();
  if (attempt == nullptr || attempt->recovery || node >= attempt->nodes()) return;
  using Status = v1::SynchronizeRequest::AttemptStatus;
  const auto status = std::find_if(request.attempts().begin(), request.attempts().end(),
                                   [&](const Status& s) { return s.token() == attempt->row.token; });
  if (status == request.attempts().end() && node != 0) return;  // this node only follows event files
  if (status == request.attempts().end()) {
    if (IsLost(*attempt, allocation, request)) {
      EndWithoutWorkers(
          *attempt, db::Cause::kWorkerLost,
          absl::StrCat("the worker on ", worker.node, " was restarted and does not know the attempt"), now,
          fx);
    } else if (attempt->row.state == db::AttemptState::kStopping && !attempt->reported &&
               (request.generation() == allocation.generation || request.leaving())) {
      // The worker has not begun the attempt. It will not begin it: it knows of the stop, or it is leaving.
      EndAttempt(*attempt, db::AttemptState::kCancelled, db::Cause::kNone, attempt->stop_reason, now, fx);
    }
    return;
  }
  if (node == 0) {
    attempt->reported = true;
    attempt->reported_by = worker.instance;
    if (status->has_code()) attempt->code = status->code();
  }
  if (node == 0 && status->state() == Status::RUNNING && attempt->row.state == db::AttemptState::kAssigned) {
    attempt->row.state = db::AttemptState::kRunning;
    attempt->row.started = now;
    fx.batch.attempts.push_back(attempt->row);
    RecordHardware(*attempt, fx);
    ++state_.study(attempt->study_id)->revision;
    fx.changed_studies.insert(attempt->study_id);
  } else if (status->state() == Status::ENDED) {
    const bool first = attempt->ended.empty();
    attempt->ended[node] = *status;
    if (static_cast<int>(attempt->ended.size()) < attempt->nodes()) {
      if (first) Wake(allocation, fx);  // stops the attempt on the other nodes too
    } else if (attempt->held_since == 0) {
      Conclude(allocation, *attempt, now, fx);
    }
  }
}

// Ends an attempt whose processes have ended on every node, or holds it until the next poll of the scheduler.
void Lifecycle::Conclude(LiveAllocation& allocation, LiveAttempt& attempt, db::Micros now, Effects& fx) {
  // Use the report of the launching node, unless another node could not start the attempt.
  const v1::SynchronizeRequest::AttemptStatus* status = &attempt.ended.at(0);
  for (const auto& [node, other] : attempt.ended) {
    if (node != 0 && other.cause() != v1::Attempt::CAUSE_UNSPECIFIED) status = &other;
  }
  // Several attempts may have begun and ended between two reports.
  const auto ran = static_cast<db::Micros>(status->run_seconds() * 1e6);
  if (attempt.row.started == 0) {
    attempt.row.started = ran > 0 ? std::max(attempt.row.assigned, now - ran) : attempt.row.assigned;
  }
  attempt.row.exit_status = status->exit_status();
  Outcome outcome = Judge(attempt.ranks, *status, NeedsFinish(attempt));
  // A stopped attempt that finished before the stop has succeeded; other stopped attempts are cancelled.
  if (outcome.state == db::AttemptState::kSucceeded) {
    attempt.row.parameter_hash = outcome.parameter_hash;
  } else if (attempt.row.state == db::AttemptState::kStopping) {
    outcome = {db::AttemptState::kCancelled, db::Cause::kNone, attempt.stop_reason, ""};
  } else {
    const bool left = status->stopped();
    if (left) {
      outcome.cause = db::Cause::kWorkerLost;
      outcome.message =
          absl::StrCat("the worker on ", allocation.workers[0].node, " had to leave and stopped the attempt");
    }
    // Poll the scheduler. If the whole job is ending, the cause of its end is also the cause of
    // the attempt's failure.
    if ((left || outcome.cause == db::Cause::kRankKilled) && attempt.held_since == 0) {
      attempt.held_since = now;
      fx.poll = true;
      return;
    }
  }
  // An allocation that cannot start steps cannot execute the next run either.
  const bool useless = outcome.cause == db::Cause::kBootFail;
  if (useless) Release(allocation, outcome.message, now, fx);
  EndAttempt(attempt, outcome.state, outcome.cause, outcome.message, now, fx);
}

v1::SynchronizeResponse Lifecycle::Desired(const LiveAllocation& allocation, int node_index) const {
  v1::SynchronizeResponse response;
  response.set_generation(allocation.generation);
  response.set_terminate(allocation.row.state == db::AllocationState::kReleasing);
  // The attempts after a lost attempt may be lost too, so assign none of them before the event files
  // have been read.
  const LiveAttempt* current = state_.attempt(allocation.attempt_id);
  if (current != nullptr && current->recovery) return response;
  for (const LiveAttempt* attempt : state_.attempts_of(allocation)) {
    if (attempt->recovery || node_index >= attempt->nodes()) continue;
    const LiveStudy& study = *state_.study(attempt->study_id);
    auto* desired = response.add_attempts();
    desired->set_token(attempt->row.token);
    desired->set_stop(attempt->row.state == db::AttemptState::kStopping || !attempt->ended.empty());
    desired->set_finished(FinishedOnFirstNode(*attempt));
    desired->set_grace_seconds(5);
    *desired->mutable_spec() = study.cells.Spec(study.cell_of[attempt->position]);
    desired->mutable_spec()->set_seed(desired->spec().seed() + study.runs[attempt->position].repeat);
    if (options_.environment_of) {
      const v1::RunSpec& run = desired->spec();
      const bool gpus = UsesGpus(run.device(), run.gpus_per_rank());
      if (auto environment = options_.environment_of(EngineOn(run.engine(), gpus)))
        *desired->mutable_environment() = *std::move(environment);
    }
    desired->set_directory(attempt->row.directory);
    desired->set_checkpoint_directory(CheckpointDirectory(desired->spec(), attempt->row.directory));
    for (const auto node : absl::StrSplit(attempt->row.nodes, ',')) desired->add_nodes(std::string(node));
    desired->set_ranks_per_node(allocation.row.ranks_per_node);
    desired->set_run(absl::StrCat("studies/", study.row.id, "/runs/", attempt->row.run_id));
    desired->set_in_turn(attempt->assigned_ahead);
    desired->set_earlier_attempts(attempt->row.number - 1);
    desired->set_max_retries(study.spec.retry().max());
    const v1::NoiseGuard& guard = study.spec.noise_guard();
    if (!(guard.has_calibrate() ? guard.calibrate() : options_.noise_guard)) continue;
    desired->set_calibration_seconds(guard.calibration_ms() > 0 ? guard.calibration_ms() / 1e3
                                                                : kCalibration);
    desired->set_calibration_interval(guard.interval_seconds() > 0 ? guard.interval_seconds()
                                                                   : kCalibrationInterval);
  }
  return response;
}

std::vector<v1::ReportEventsResponse::Stream> Lifecycle::Ingest(const std::string& allocation_token,
                                                                std::vector<ParsedBatch> batches,
                                                                Effects& fx) {
  const auto reporting = state_.allocation_by_token.find(allocation_token);
  std::vector<v1::ReportEventsResponse::Stream> answers;
  answers.reserve(batches.size());
  for (ParsedBatch& batch : batches) {
    v1::ReportEventsResponse::Stream& answer = answers.emplace_back();
    answer.set_token(batch.token);
    answer.set_rank(batch.append.rank);
    const auto it = state_.attempt_by_token.find(batch.token);
    LiveAttempt* attempt = it == state_.attempt_by_token.end() ? nullptr : state_.attempt(it->second);
    const bool own = attempt != nullptr && !attempt->recovery &&
                     reporting != state_.allocation_by_token.end() &&
                     (attempt->row.allocation_id == reporting->second || Planted(Bug::kStaleReportAccepted));
    if (!own || batch.append.rank < 0 || batch.append.rank >= static_cast<int>(attempt->ranks.size())) {
      answer.set_outcome(v1::ReportEventsResponse::Stream::FENCED);
      continue;
    }
    const db::StreamRow& stream = attempt->ranks[batch.append.rank].stream;
    answer.set_outcome(Append(*attempt, std::move(batch), fx) ? v1::ReportEventsResponse::Stream::ACCEPTED
                                                              : v1::ReportEventsResponse::Stream::GAP);
    answer.set_position(stream.position);
    answer.set_line(stream.line);
  }
  return answers;
}

// Stores the step from which the attempt continues, and its last checkpoint.
void Lifecycle::RecordCheckpoints(LiveAttempt& attempt, const ParsedBatch& batch, Effects& fx) {
  db::AttemptRow& row = attempt.row;
  const int64_t resumed = batch.resumed_step.value_or(row.resumed_step);
  const int64_t checkpoint = std::max(row.checkpoint_step, batch.checkpoint_step.value_or(0));
  if (resumed == row.resumed_step && checkpoint == row.checkpoint_step) return;
  row.resumed_step = resumed;
  row.checkpoint_step = checkpoint;
  attempt.step = std::max(attempt.step, resumed);
  fx.batch.attempts.push_back(row);
}

bool Lifecycle::Append(LiveAttempt& attempt, ParsedBatch batch, Effects& fx) {
  RankState& rank = attempt.ranks[batch.append.rank];
  db::StreamRow& stream = rank.stream;
  db::StreamAppend& append = batch.append;
  if (append.end_position <= stream.position && !Planted(Bug::kResendNotDropped)) return true;
  if ((append.begin_position != stream.position || append.begin_line != stream.line) &&
      !Planted(Bug::kResendNotDropped))
    return false;
  Apply(stream, append);
  if (batch.finish_metrics) rank.finish_metrics = std::move(*batch.finish_metrics);
  if (append.rank == 0) {
    RecordCheckpoints(attempt, batch, fx);
    state_.study(attempt.study_id)->CountSteps(batch.steps, attempt);
    if (batch.total_steps) attempt.total_steps = *batch.total_steps;
    if (batch.last_step) attempt.step = AddToStep(*batch.last_step, 1);
    if (batch.last_loss) attempt.train_loss = batch.last_loss;
    ++state_.study(attempt.study_id)->revision;
    fx.changed_studies.insert(attempt.study_id);
  }
  append.attempt_id = attempt.row.id;
  for (db::EpochRow& epoch : batch.epochs) {
    epoch.attempt_id = attempt.row.id;
    fx.batch.epochs.push_back(std::move(epoch));
  }
  fx.batch.appends.push_back(std::move(append));
  return true;
}

}  // namespace scalelab::server
