// Implements the functions of Lifecycle that begin and end attempts.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "catalog/engines.h"
#include "server/core/blocks.h"
#include "server/core/lifecycle.h"
#include "server/core/outcome.h"

namespace scalelab::server {
namespace {

// A worker gets runs in advance only if they are expected to begin within this time. While they wait on the
// worker, no other allocation can execute them.
constexpr db::Micros kLongestTurn = 50'000;
constexpr int kMaxAhead = 32;

// Returns whether the attempt may have waited behind another attempt when its worker was lost, and has
// no final report.
bool MayNotHaveBegun(const LiveAttempt& attempt) {
  return attempt.assigned_ahead && attempt.row.started == 0 && attempt.ended.empty();
}

// After this number of attempts of a run, each further attempt counts as a retry, even if it continues from a
// newer checkpoint. Without this limit, a custom program that always reports new checkpoints would never end.
constexpr int kMostContinued = 500;

// Returns whether the end of its allocation ended the attempt, and the attempt had written a newer
// checkpoint than all earlier attempts. Then another attempt continues the run and makes progress. A program
// that begins again with the first step only repeats the checkpoints of earlier attempts, so it does not
// count as progress.
bool Continues(const LiveStudy& study, const LiveAttempt& attempt, db::Cause cause) {
  if (cause != db::Cause::kTimeout && cause != db::Cause::kPreempted) return false;
  if (attempt.row.number >= kMostContinued) return false;
  const auto earlier = study.checkpoints.find(attempt.position);
  const int64_t newest = earlier == study.checkpoints.end() ? 0 : earlier->second;
  return attempt.row.checkpoint_step > std::max(newest, attempt.row.resumed_step);
}

}  // namespace

namespace {

// Returns whether any run may begin in the allocation, because it has no time limit or has executed no run
// yet. In the latter case, no other allocation of the study would have more time.
bool FitsAnything(const LiveAllocation& allocation) {
  return allocation.ends_at == 0 || allocation.served == 0;
}

bool EndsInTime(const LiveAllocation& allocation, db::Micros needed, db::Micros now) {
  return now + needed + needed / 10 + EndMargin(allocation) <= allocation.ends_at;
}

// Returns whether all queued runs of the part, one after another, are expected to end before the allocation's time limit.
bool PartFitsInto(const LiveAllocation& allocation, const LiveStudy& study, BlockPart part, db::Micros now) {
  if (FitsAnything(allocation)) return true;
  const db::Micros unknown = study.longest_of_all;
  db::Micros needed = 0;
  VisitQueuedRuns(study, part, [&](int position) {
    const db::Micros longest = study.longest[study.cell_of[position]];
    needed += longest != 0 ? longest : unknown;
    return true;
  });
  return EndsInTime(allocation, needed, now);
}

}  // namespace

bool FitsInto(const LiveAllocation& allocation, const LiveStudy& study, int position, db::Micros now) {
  if (FitsAnything(allocation)) return true;
  db::Micros needed = study.longest[study.cell_of[position]];
  if (needed == 0) needed = study.longest_of_all;
  return EndsInTime(allocation, needed, now);
}

int Lifecycle::Choose(const LiveStudy& study, const LiveAllocation& allocation, db::Micros now) const {
  if (allocation.row.run_id == 0) return ChooseOfGroup(study, allocation, now);
  const int position = study.PositionOf(allocation.row.run_id);
  return study.queued.contains(position) && FitsInto(allocation, study, position, now) ? position : -1;
}

int Lifecycle::ChooseOfGroup(const LiveStudy& study, const LiveAllocation& allocation, db::Micros now) const {
  int chosen = -1;
  const auto choose_fitting = [&](int position) {
    if (FitsInto(allocation, study, position, now)) chosen = position;
    return chosen < 0;
  };
  const int shape = ShapeIndexOf(study, allocation);
  // A single allocation uses the rest of its time for any run that fits, because the next allocation executes
  // all other runs.
  const bool parallel = ConcurrentAllocations(study.spec) > 1;
  const bool own = allocation.part.has_value() && !OthersHold(study, allocation, *allocation.part);
  if (parallel && own &&
      (HasQueuedRuns(study, *allocation.part) || WaitsForDelayed(study, allocation, now))) {
    VisitQueuedRuns(study, *allocation.part, choose_fitting);
    return chosen;
  }
  VisitQueuedParts(study, [&](BlockPart part, int) {
    if (part.shape != shape || OthersHold(study, allocation, part)) return true;
    if (!parallel || PartFitsInto(allocation, study, part, now)) VisitQueuedRuns(study, part, choose_fitting);
    return chosen < 0;
  });
  return chosen;
}

// Returns why the allocation is released although its study may have queued runs.
std::string Lifecycle::WhyNoRun(const LiveStudy* study, const LiveAllocation& allocation) const {
  if (study != nullptr && study->queued.empty() && !study->delayed.empty())
    return "its runs are tried again later";
  if (study == nullptr || study->queued.empty() || allocation.row.run_id != 0) return "no run is queued";
  bool too_late = false;
  VisitQueuedParts(*study, [&](BlockPart part, int) {
    too_late = part.shape == ShapeIndexOf(*study, allocation) && !OthersHold(*study, allocation, part);
    return !too_late;
  });
  return too_late ? "no queued run would end before its time limit"
                  : "other allocations serve the queued runs";
}

void Lifecycle::Assign(LiveAllocation& allocation, db::Micros now, Effects& fx) {
  if (allocation.row.state != db::AllocationState::kRunning || allocation.cancel_sent || allocation.ending ||
      allocation.leaving_since != 0) {
    return;
  }
  if (allocation.attempt_id != 0) return AssignAhead(allocation, now, fx);
  // Wait until the workers of all nodes have reported. Each worker reads the event files of the ranks
  // on its node.
  if (static_cast<int>(allocation.workers.size()) < allocation.row.nodes) return;
  LiveStudy* study = state_.study(allocation.row.study_id);
  if (study != nullptr && !WhyNotBegin(*study).empty()) return Withdraw(allocation, now, fx);
  const int position = study == nullptr ? -1 : Choose(*study, allocation, now);
  if (position < 0) {
    // Keep the allocation, because the assessment takes less time than getting another allocation.
    if (study != nullptr && allocation.row.run_id == 0 && WaitsForAssessment(*study) &&
        study->delayed.empty())
      return;
    if (study != nullptr && WaitsForDelayed(*study, allocation, now)) return;
    // The allocation has not failed if it executes no attempt because its runs are delayed.
    if (study != nullptr && !study->delayed.empty()) allocation.withdrawn = true;
    Release(allocation, WhyNoRun(study, allocation), now, fx);
    if (study != nullptr) UpdateWaiting(*study, now);
    return;
  }
  allocation.attempt_id = AddAttempt(allocation, *study, position, now, fx);
  study->UpdateAllocation(allocation);
  AssignAhead(allocation, now, fx);
}

// Assigns further short runs, which the worker executes one after another without a call in between.
// Otherwise the calls would take longer than a run of a millisecond. The duration of each of these runs
// must be known.
void Lifecycle::AssignAhead(LiveAllocation& allocation, db::Micros now, Effects& fx) {
  LiveStudy* study = state_.study(allocation.row.study_id);
  if (study == nullptr || !WhyNotBegin(*study).empty()) return;
  // If the study has other allocations, one of them could execute a run that waits here.
  if (allocation.row.nodes != 1 || allocation.row.run_id != 0 || ConcurrentAllocations(study->spec) > 1)
    return;
  const auto worker = allocation.workers.find(0);
  const int limit = worker == allocation.workers.end() ? 0 : std::min(worker->second.queue_limit, kMaxAhead);
  db::Micros wait = 0;  // expected time until the next run begins
  const auto waits_too_long = [&](const LiveAttempt& attempt) {
    const auto latest = study->latest.find(study->cell_of[attempt.position]);
    if (latest == study->latest.end()) return true;
    wait += latest->second;
    return wait > kLongestTurn || attempt.recovery || attempt.row.state == db::AttemptState::kStopping;
  };
  for (const LiveAttempt* attempt : state_.attempts_of(allocation)) {
    if (waits_too_long(*attempt)) return;
  }
  while (static_cast<int>(allocation.next_attempts.size()) < limit) {
    const int position = Choose(*study, allocation, now + wait);
    if (position < 0) return;
    const std::optional<BlockPart> earlier = allocation.part;
    const int64_t id = AddAttempt(allocation, *study, position, now, fx);
    if (allocation.part != earlier) study->UpdateAllocation(allocation);
    LiveAttempt& attempt = *state_.attempt(id);
    attempt.assigned_ahead = true;
    allocation.next_attempts.push_back(id);
    if (waits_too_long(attempt)) return;
  }
}

// Makes an attempt of the run at `position` for the allocation. Returns its id.
int64_t Lifecycle::AddAttempt(LiveAllocation& allocation, LiveStudy& study, int position, db::Micros now,
                              Effects& fx) {
  // Only the first attempt resets the failures, because other allocations of the study may fail later.
  if (++allocation.served == 1) study.failed_allocations.erase(allocation.row.run_id);
  if (allocation.row.run_id == 0) allocation.part = PartOf(study, position);

  const int ranks = study.cells.NeedsOf(study.cell_of[position]).ranks;
  db::RunRow& run = study.runs[position];
  auto attempt = std::make_unique<LiveAttempt>();
  attempt->study_id = study.row.id;
  attempt->position = position;
  db::AttemptRow& row = attempt->row;
  row.id = ++state_.last_attempt_id;
  row.run_id = run.id;
  row.number = ++run.attempts;
  row.token = options_.new_token();
  row.allocation_id = allocation.row.id;
  row.assigned = now;
  row.directory = absl::StrCat(options_.runs_dir, options_.runs_by_owner ? "/" + study.row.owner : "", "/",
                               study.row.id, "/", run.id, "/", row.token);
  const int nodes = (ranks + allocation.row.ranks_per_node - 1) / allocation.row.ranks_per_node;
  for (int n = 0; n < nodes; ++n) absl::StrAppend(&row.nodes, n == 0 ? "" : ",", allocation.workers[n].node);
  attempt->assigned_to = allocation.workers[0].instance;
  attempt->ranks.resize(ranks);
  for (int r = 0; r < ranks; ++r) {
    attempt->ranks[r].stream.attempt_id = row.id;
    attempt->ranks[r].stream.rank = r;
  }
  run.started = now;
  run.cause = db::Cause::kNone;
  run.message.clear();
  if (study.row.started == 0) {
    study.row.started = now;
    study.row.state = db::StudyState::kRunning;
    fx.batch.studies.push_back(study.row);
  }
  SetRunState(study, position, db::RunState::kRunning, now, fx);
  fx.batch.attempts.push_back(row);
  const int64_t id = row.id;
  state_.attempt_by_token[row.token] = id;
  state_.attempts.emplace(id, std::move(attempt));
  Wake(allocation, fx);
  return id;
}

// Replaces the attempt `ended` by the next attempt of the allocation.
void Lifecycle::ServeNext(LiveAllocation& allocation, int64_t ended, db::Micros now) {
  if (allocation.attempt_id != ended) {
    std::erase(allocation.next_attempts, ended);
    return;
  }
  allocation.attempt_id = allocation.next_attempts.empty() ? 0 : allocation.next_attempts.front();
  UpdateAllocation(allocation);
  if (allocation.attempt_id == 0) return;
  allocation.next_attempts.pop_front();
  state_.attempt(allocation.attempt_id)->turn_since = now;
}

void Lifecycle::StopAttempt(LiveAttempt& attempt, db::Micros now, Effects& fx) {
  if (attempt.row.state == db::AttemptState::kStopping) return;
  attempt.row.state = db::AttemptState::kStopping;
  attempt.row.message = attempt.stop_reason;
  attempt.stopping_since = now;
  fx.batch.attempts.push_back(attempt.row);
  if (LiveAllocation* allocation = state_.allocation(attempt.row.allocation_id)) Wake(*allocation, fx);
}

// Returns the hardware of the attempt's nodes and the software that its engine used. Workers report the
// versions of scalelab-trainer and its libraries, which only native engines use, and report the versions of a
// framework at the end of the attempt.
std::vector<v1::NodeInfo> Lifecycle::NodesOf(const LiveAttempt& attempt) const {
  std::vector<v1::NodeInfo> infos;
  const LiveAllocation* allocation = state_.allocation(attempt.row.allocation_id);
  if (allocation != nullptr && !attempt.recovery) {
    for (const auto& [index, worker] : allocation->workers) {
      if (index < attempt.nodes()) infos.push_back(worker.info);
    }
    const LiveStudy& study = *state_.study(attempt.study_id);
    if (!RunsTrainer(study.cells.Text(study.cell_of[attempt.position], v1::RunSpec::kEngineFieldNumber))) {
      for (v1::NodeInfo& info : infos) info.clear_software();
    }
  }
  if (static_cast<int>(infos.size()) < attempt.nodes()) infos = attempt.hardware;
  const auto add = [&](const auto& software) {
    for (v1::NodeInfo& info : infos) {
      for (const auto& [name, version] : software) (*info.mutable_software())[name] = version;
    }
  };
  if (const auto launched = attempt.ended.find(0); launched != attempt.ended.end())
    add(launched->second.software());
  if (attempt.recovery) add(attempt.recovery->software);
  return infos;
}

bool Lifecycle::NeedsFinish(const LiveAttempt& attempt) const {
  const LiveStudy& study = *state_.study(attempt.study_id);
  return study.cells.Text(study.cell_of[attempt.position], v1::RunSpec::kSuccessFieldNumber) != "exit_status";
}

Summary Lifecycle::ResultsOf(const LiveAttempt& attempt) const {
  const LiveStudy& study = *state_.study(attempt.study_id);
  const size_t cell = study.cell_of[attempt.position];
  // The programs of other engines report a throughput, or have failed to measure it.
  const bool custom = RunsOwnProgram(study.cells.Text(cell, v1::RunSpec::kEngineFieldNumber));
  return Summarize(attempt.row, attempt.ranks, Fingerprint(NodesOf(attempt)),
                   custom ? study.cells.Int(cell, v1::RunSpec::kGlobalBatchFieldNumber) : 0);
}

void Lifecycle::EndAttempt(LiveAttempt& attempt, db::AttemptState to, db::Cause cause, std::string message,
                           db::Micros now, Effects& fx) {
  LiveStudy& study = *state_.study(attempt.study_id);
  db::RunRow& run = study.runs[attempt.position];
  const std::vector<v1::NodeNoise> noise = TakeNoise(attempt);
  if (to == db::AttemptState::kSucceeded) to = ConsiderNoise(study, attempt.position, noise, cause, message);
  attempt.row.state = to;
  attempt.row.cause = cause;
  attempt.row.message = message;
  attempt.row.finished = now;
  if (to == db::AttemptState::kFailed && cause == db::Cause::kNoisy) {
    const db::RunSummary measured = ResultsOf(attempt).row;
    attempt.row.throughput = measured.throughput;
    attempt.row.epoch_seconds = measured.epoch_seconds;
  }
  fx.batch.attempts.push_back(attempt.row);
  if (const auto nodes = NodesOf(attempt); !nodes.empty()) {
    fx.batch.provenance.push_back({attempt.row.id, ProvenanceJson(nodes, noise, attempt.code)});
  }
  const bool continues = Continues(study, attempt, cause);
  study.AttemptEnded(attempt.position, attempt.row);
  run.cause = cause;
  run.message = message;
  if (to == db::AttemptState::kSucceeded || cause == db::Cause::kNoisy) {
    state_.bad_nodes.Succeeded(attempt.row.nodes, study.row.id, now);
  } else if (to == db::AttemptState::kFailed && !MayNotHaveBegun(attempt)) {
    const bool works = study.counts[static_cast<size_t>(db::RunState::kSucceeded)] > 0;
    const std::string for_all = study.row.is_private ? "" : message;
    state_.bad_nodes.Failed(attempt.row.nodes, study.row.id, works, cause, for_all, now);
  }
  if (to == db::AttemptState::kSucceeded) {
    const size_t cell = study.cell_of[attempt.position];
    const bool custom = RunsOwnProgram(study.cells.Text(cell, v1::RunSpec::kEngineFieldNumber));
    Summary summary = ResultsOf(attempt);
    run.message = std::move(summary.refused);
    if (const LiveAllocation* allocation = state_.allocation(attempt.row.allocation_id);
        allocation != nullptr)
      summary.row.times.ranks_per_node = allocation->row.ranks_per_node;
    if (custom && run.message.empty() && !summary.row.throughput) {
      run.message =
          "no throughput, so the curve has no point: the program reported neither run/throughput nor "
          "step/total_s";
    }
    fx.batch.summaries.push_back(std::move(summary.row));
    const auto launched = attempt.ended.find(0);
    const auto ran = launched == attempt.ended.end()
                         ? db::Micros{0}
                         : static_cast<db::Micros>(launched->second.run_seconds() * 1e6);
    if (ran > 0) study.latest[study.cell_of[attempt.position]] = ran;
    // The duration that the worker reports is right even if the wall clock was set while the coordinator
    // did not run.
    study.RunTook(attempt.position, ran > 0 ? ran : now - attempt.began());
    study.failed_attempts.erase(attempt.position);
    SetRunState(study, attempt.position, db::RunState::kSucceeded, now, fx);
  } else if (to == db::AttemptState::kCancelled || study.row.cancel_requested) {
    SetRunState(study, attempt.position, db::RunState::kCancelled, now, fx);
  } else if (cause == db::Cause::kNoisy) {
    ++run.uncounted;
    ++study.reruns[attempt.position];
    study.failed_attempts.erase(attempt.position);
    run.message = absl::StrCat("attempt ", run.attempts, " is repeated because it was noisy: ", message);
    SetRunState(study, attempt.position, db::RunState::kQueued, now, fx);
  } else if (cause == db::Cause::kStorageError || MayNotHaveBegun(attempt)) {
    // The failure does not count for the limit of retries, because the run did not cause it. The next run
    // would also fail.
    ++run.uncounted;
    run.message = absl::StrCat("attempt ", run.attempts, " failed (", message, "); it will be tried again");
    SetRunState(study, attempt.position, db::RunState::kQueued, now, fx);
    if (cause == db::Cause::kStorageError) Delay(study, attempt.position, now);
  } else if (continues) {
    ++run.uncounted;
    study.failed_attempts.erase(attempt.position);
    run.message = absl::StrCat("attempt ", run.attempts, " ended (", message,
                               "); the next one continues after step ", attempt.row.checkpoint_step);
    SetRunState(study, attempt.position, db::RunState::kQueued, now, fx);
  } else if (run.attempts - run.uncounted <= study.spec.retry().max() &&
             (attempt.cut_short || Retries(study.spec.retry(), cause))) {
    run.message = absl::StrCat("attempt ", run.attempts, " failed (", message, "); it will be tried again");
    SetRunState(study, attempt.position, db::RunState::kQueued, now, fx);
    Delay(study, attempt.position, now);
  } else {
    SetRunState(study, attempt.position, db::RunState::kFailed, now, fx);
    PauseIfAllFail(study, cause, message, now, fx);
  }
  CountStorageErrors(study, attempt.position, cause, message, now, fx);
  if (LiveAllocation* allocation = state_.allocation(attempt.row.allocation_id)) {
    ServeNext(*allocation, attempt.row.id, now);
    if (study.row.cancel_requested) Release(*allocation, "the study was cancelled", now, fx);
    Wake(*allocation, fx);
  }
  state_.attempt_by_token.erase(attempt.row.token);
  state_.recovering.erase(attempt.row.id);
  state_.attempts.erase(attempt.row.id);  // invalidates `attempt`
  UpdateStudy(study, now, fx);
}

}  // namespace scalelab::server
