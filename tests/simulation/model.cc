#include "tests/simulation/model.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "server/core/accounting.h"
#include "server/core/convert.h"
#include "study/shapes.h"

namespace scalelab::simulation {
namespace {

using db::AllocationState;
using db::AttemptState;
using db::RunState;
using db::StudyState;

// The coordinator allows four pending jobs of a user, and a study has a limit of its own. Jobs whose cancel
// is in flight may exceed these limits.
constexpr int kMostPendingOfUser = 8, kMostEndingOfStudy = 2;

}  // namespace

double ValueOf(const std::string& token, int rank, int64_t line) {
  uint64_t seed = 17;
  for (const unsigned char c : token) seed = seed * 31 + c;
  return Random(seed + static_cast<uint64_t>(rank) * 1000 + static_cast<uint64_t>(line)).Unit();
}

// --- Commits

void Model::Committed(const db::WriteBatch& batch) {
  if (batch.drain && !batch.drain->on) drained_ = false;
  for (const db::StudyRow& row : batch.studies) CommitStudy(row);
  for (const db::AttemptRow& row : batch.attempts) NoteProgress(row);
  for (const db::RunRow& row : batch.runs) CommitRun(row);
  for (const db::AllocationRow& row : batch.allocations) CommitAllocation(row);
  for (const db::AttemptRow& row : batch.attempts) CommitAttempt(row);
  CheckAllocations(batch);
  std::map<std::string, db::UsageRow> usage;  // the last row of each owner is valid
  for (const db::UsageRow& row : batch.usage) usage[row.owner] = row;
  for (const auto& [owner, row] : usage) CommitUsage(row);
  for (const int64_t id : batch.deleted_studies) Delete(id);
  if (batch.drain) {
    world_.Trace("commit: drain mode is ", batch.drain->on);
    if (batch.drain->on) drained_ = true;
  }
  for (const db::StudyRow& row : batch.studies) {
    if (row.held)
      held_.insert(row.id);
    else
      held_.erase(row.id);
    if (row.pause_reason.empty())
      paused_.erase(row.id);
    else
      paused_.insert(row.id);
  }
}

void Model::CommitStudy(const db::StudyRow& row) {
  if (deleted_.contains(row.id)) world_.Violation("study ", row.id, " is written after it was deleted");
  const auto [it, fresh] = studies_.emplace(row.id, row);
  const StudyState from = it->second.state, to = row.state;
  it->second = row;
  if (fresh) {
    v1::StudySpec spec;
    if (!server::FromJson(row.spec, &spec).ok()) world_.Violation("study ", row.id, " cannot be read");
    most_allocations_[row.id] = ConcurrentAllocations(spec);
  }
  if (cancelled_.contains(row.id) && !row.cancel_requested && !retry_asked_.contains(row.id))
    world_.Violation("study ", row.id, " is no longer cancelled");
  if (!fresh && from == to) return;
  world_.Trace("commit: study ", row.id, " is ", static_cast<int>(to),
               row.pause_reason.empty() ? "" : ", paused");
  if (fresh && to != StudyState::kQueued)
    world_.Violation("study ", row.id, " begins as ", static_cast<int>(to));
  const bool back = IsFinal(from) && retry_asked_.contains(row.id) && !IsFinal(to);
  if (!fresh && to < from && !back) {
    world_.Violation("study ", row.id, " changes from ", static_cast<int>(from), " to ",
                     static_cast<int>(to));
  }
}

void Model::CommitRun(const db::RunRow& row) {
  const auto [it, fresh] = runs_.emplace(row.id, row);
  const RunState from = it->second.state, to = row.state;
  it->second = row;
  if (!fresh && from == to) return;
  world_.Trace("commit: run ", row.id, " is ", static_cast<int>(to), " ", row.message);
  if (fresh && to != RunState::kQueued) world_.Violation("run ", row.id, " begins as ", static_cast<int>(to));
  const bool retried =
      to == RunState::kQueued && from != RunState::kSucceeded && retry_asked_.contains(row.study_id);
  if (to == RunState::kFailed && progressed_.contains(row.id) && from == RunState::kRunning)
    world_.Violation("run ", row.id, " failed although its last attempt made progress: ", row.message);
  if (!fresh && IsFinal(from) && !retried) {
    world_.Violation("run ", row.id, " changes from ", static_cast<int>(from), " to ", static_cast<int>(to));
  }
}

int64_t Model::CheckpointOf(const std::string& run) const {
  const auto it = checkpoints_.find(run);
  return it == checkpoints_.end() ? 0 : it->second;
}

// Records whether a run must continue.
void Model::NoteProgress(const db::AttemptRow& row) {
  const bool cut = row.cause == db::Cause::kTimeout || row.cause == db::Cause::kPreempted;
  int64_t& newest = newest_checkpoint_[row.run_id];
  if (row.state == AttemptState::kFailed && cut && row.checkpoint_step > std::max(row.resumed_step, newest)) {
    progressed_.insert(row.run_id);
  } else {
    progressed_.erase(row.run_id);
  }
  if (IsFinal(row.state)) newest = std::max(newest, row.checkpoint_step);
}

void Model::CommitAttempt(const db::AttemptRow& row) {
  const auto [it, fresh] =
      attempts_.emplace(row.token, Attempt{row.id, row.run_id, row.allocation_id, row.state});
  const AttemptState from = it->second.state, to = row.state;
  it->second.state = to;
  if (!fresh && from == to) return;
  world_.Trace("commit: attempt ", row.token, " of run ", row.run_id, " is ", static_cast<int>(to), " ",
               row.message);
  if (!fresh && (IsFinal(from) || to < from)) {
    world_.Violation("attempt ", row.token, " changes from ", static_cast<int>(from), " to ",
                     static_cast<int>(to));
  }
  if (fresh && row.number != ++attempts_of_[row.run_id])
    world_.Violation("attempt ", row.token, " of run ", row.run_id, " has number ", row.number,
                     " instead of ", attempts_of_[row.run_id]);
  std::string& live = live_attempt_[row.run_id];
  if (!IsFinal(to)) {
    if (!live.empty() && live != row.token)
      world_.Violation("run ", row.run_id, " has two attempts: ", live, " and ", row.token);
    live = row.token;
  } else if (live == row.token) {
    live.clear();
  }
  const auto run = runs_.find(row.run_id);
  if (run == runs_.end()) return world_.Violation("attempt ", row.token, " has no run");
  if (fresh && cancelled_.contains(run->second.study_id) && !retry_asked_.contains(run->second.study_id))
    world_.Violation("attempt ", row.token, " begins after study ", run->second.study_id, " was cancelled");
  // A study may be paused in the commit that begins an attempt.
  if (fresh && paused_.contains(run->second.study_id) &&
      !studies_.at(run->second.study_id).pause_reason.empty())
    world_.Violation("attempt ", row.token, " begins while study ", run->second.study_id, " is paused");
  if (fresh && held_.contains(run->second.study_id) && studies_.at(run->second.study_id).held)
    world_.Violation("attempt ", row.token, " begins while study ", run->second.study_id, " is held");
  if (fresh && drained_) world_.Violation("attempt ", row.token, " begins in drain mode");
}

void Model::CommitAllocation(const db::AllocationRow& row) {
  const auto [it, fresh] = allocations_.emplace(row.token, row);
  const AllocationState from = it->second.state;
  it->second = row;
  allocation_token_[row.id] = row.token;
  if (fresh || from != row.state)
    world_.Trace("commit: allocation ", row.token, " is ", static_cast<int>(row.state), " ", row.reason);
  if (fresh && drained_) world_.Violation("allocation ", row.token, " is made in drain mode");
  if (row.state < from)
    world_.Violation("allocation ", row.token, " changes from ", static_cast<int>(from), " to ",
                     static_cast<int>(row.state));
}

// The usage that is charged to a user must be the sum over the charged times of the user's allocations,
// even after restarts.
void Model::CommitUsage(const db::UsageRow& row) {
  double held = 0;
  for (const auto& [token, allocation] : allocations_) {
    if (allocation.owner == row.owner) held += 1e-6 * static_cast<double>(allocation.held) * allocation.nodes;
  }
  if (std::abs(held - row.node_seconds) > 1e-3)
    world_.Violation(row.owner, " is charged ", row.node_seconds, " node-seconds, and the allocations have ",
                     held);
}

void Model::CheckUsage(const server::State& state, db::Micros now) {
  const server::CurrentUse use(state, now);
  double last_usage = 0;
  int last_priority = 0;
  size_t waiting = state.waiting.size();
  for (const server::QueueEntry& entry : server::ListQueue(state, now, 1000)) {
    if (entry.reason.empty()) world_.Violation("study ", entry.study->row.id, " has no reason in the queue");
    if (waiting == 0) break;  // the remaining studies are held, paused or delayed
    const bool first = waiting-- == state.waiting.size();
    const int priority = entry.study->row.priority;
    if (!first && (priority > last_priority || (priority == last_priority && entry.owner_usage < last_usage)))
      world_.Violation("study ", entry.study->row.id, " has a wrong place in the queue");
    last_priority = priority;
    last_usage = entry.owner_usage;
  }
  if (world_.faults.Enabled(Fault::kClockJump)) return;  // the times of the rows are those of the wall clock
  std::map<std::string, double> expected;
  for (const auto& [token, row] : allocations_) {
    if (row.started == 0) continue;
    const db::Micros end = row.state == AllocationState::kEnded ? row.ended : now;
    expected[row.owner] += server::DecayedSeconds(row.started, end, now, state.usage.half_life()) * row.nodes;
  }
  for (const auto& [owner, seconds] : expected) {
    if (std::abs(use.Share(owner) - seconds) > 1e-3)
      world_.Violation(owner, " has used ", use.Share(owner), " node-seconds instead of ", seconds);
  }
}

// Returns whether the allocation has, or may get, an attempt.
bool Model::Holds(const db::AllocationRow& row) const {
  if (row.state == AllocationState::kEnded) return false;
  return row.state != AllocationState::kReleasing ||
         std::any_of(live_attempt_.begin(), live_attempt_.end(), [&](const auto& live) {
           const auto attempt = attempts_.find(live.second);
           return attempt != attempts_.end() && attempt->second.allocation == row.id;
         });
}

// Checks that a study does not have too many allocations, and that only one of them executes a block.
void Model::CheckAllocations(const db::WriteBatch& batch) {
  std::set<int64_t> studies;
  for (const db::AllocationRow& row : batch.allocations) {
    if (row.state == AllocationState::kIntended) studies.insert(row.study_id);
  }
  for (const int64_t study : studies) {
    const auto holding = std::count_if(allocations_.begin(), allocations_.end(), [&](const auto& entry) {
      return entry.second.study_id == study && Holds(entry.second);
    });
    if (holding > most_allocations_[study])
      world_.Violation("study ", study, " has ", holding, " allocations, and may have ",
                       most_allocations_[study]);
  }
  std::set<int64_t> seen;
  for (const db::AttemptRow& row : batch.attempts) {
    if (row.state == AttemptState::kAssigned && seen.insert(row.id).second) CheckBlock(row);
  }
}

void Model::CheckBlock(const db::AttemptRow& row) {
  const auto run = runs_.find(row.run_id);
  const auto token = allocation_token_.find(row.allocation_id);
  if (run == runs_.end() || token == allocation_token_.end()) return;
  const db::AllocationRow& allocation = allocations_.at(token->second);
  if (allocation.run_id != 0) return;
  const Block block(run->second.study_id, run->second.repeat, allocation.nodes);
  block_of_[allocation.id] = block;
  const int64_t before = std::exchange(holder_[block], allocation.id);
  if (before == 0 || before == allocation.id || block_of_.at(before) != block) return;
  const db::AllocationRow& other = allocations_.at(allocation_token_.at(before));
  if (Holds(other))
    world_.Violation("block ", run->second.repeat, " of study ", run->second.study_id,
                     " is served by two allocations: ", other.token, " and ", allocation.token);
}

void Model::Delete(int64_t study) {
  if (!studies_.contains(study)) return;  // an earlier copy of the request has deleted it
  world_.Trace("commit: study ", study, " is deleted");
  if (!delete_asked_.contains(study))
    world_.Violation("study ", study, " is deleted, and nobody asked for it");
  if (!IsFinal(studies_.at(study).state)) world_.Violation("study ", study, " is deleted before it is final");
  deleted_.insert(study);
  studies_.erase(study);
  std::erase_if(attempts_, [&](const auto& entry) {
    const auto run = runs_.find(entry.second.run);
    return run != runs_.end() && run->second.study_id == study;
  });
  std::erase_if(runs_, [&](const auto& entry) { return entry.second.study_id == study; });
}

void Model::JobAccepted(const server::JobRequest& request) {
  const auto it = allocations_.find(request.token);
  if (it == allocations_.end())
    return world_.Violation("a job is submitted for ", request.token, ", which is not durable");
  if (it->second.state == AllocationState::kEnded)
    world_.Violation("a job is submitted for ", request.token, ", which has ended");
}

// --- Acknowledgements

void Model::StudyAcknowledged(const std::string& owner, const std::string& request_id, int64_t id,
                              int64_t runs) {
  const auto [it, fresh] = acknowledged_.emplace(std::pair(owner, request_id), id);
  if (it->second != id) world_.Violation("request ", request_id, " made studies ", it->second, " and ", id);
  const auto study = studies_.find(id);
  if (study == studies_.end()) {
    if (!deleted_.contains(id)) world_.Violation("study ", id, " is acknowledged and not committed");
  } else if (study->second.runs != runs) {
    world_.Violation("study ", id, " has ", study->second.runs, " runs instead of ", runs);
  }
}

void Model::CancelAcknowledged(int64_t study) { cancelled_.insert(study); }

void Model::DeleteAcknowledged(int64_t study) {
  delete_acknowledged_.insert(study);
  if (!deleted_.contains(study))
    world_.Violation("the deletion of study ", study, " is acknowledged and not committed");
}

void Model::RanksStart(const std::string& run, const std::string& token) {
  std::set<std::string>& live = live_ranks_[run];
  live.insert(token);
  world_.Trace("ranks of ", token, " start");
  if (live.size() > 1) {
    world_.Violation("ranks of two attempts of ", run, " are live: ", *live.begin(), " and ", *live.rbegin());
  }
}

void Model::RanksEnd(const std::string& run, const std::string& token) {
  if (live_ranks_[run].erase(token) > 0) world_.Trace("ranks of ", token, " end");
}

void Model::LinesAcknowledged(const std::string& token, int rank, int64_t lines) {
  int64_t& acknowledged = lines_[token][rank];
  acknowledged = std::max(acknowledged, lines);
  unchecked_.insert(token);
}

bool Model::Settled() const {
  return std::all_of(studies_.begin(), studies_.end(),
                     [](const auto& entry) {
                       return IsFinal(entry.second.state) || !entry.second.pause_reason.empty();
                     }) &&
         std::all_of(allocations_.begin(), allocations_.end(),
                     [](const auto& entry) { return entry.second.state == AllocationState::kEnded; });
}

void Model::CheckPending(const std::vector<std::string>& tokens) {
  std::map<std::string, int> of_user;
  std::map<int64_t, int> of_study;
  for (const std::string& token : tokens) {
    const auto allocation = allocations_.find(token);
    if (allocation == allocations_.end()) continue;
    const auto study = studies_.find(allocation->second.study_id);
    if (study == studies_.end()) continue;
    if (++of_user[study->second.owner] == kMostPendingOfUser + 1)
      world_.Violation(study->second.owner, " has more than ", kMostPendingOfUser, " pending jobs");
    const int most = most_allocations_[study->first] + kMostEndingOfStudy;
    if (allocation->second.run_id == 0 && ++of_study[study->first] == most + 1)
      world_.Violation("study ", study->first, " has more than ", most, " pending jobs");
  }
}

bool Model::HasAllocation(const std::string& token) const {
  const auto it = allocations_.find(token);
  return it != allocations_.end() && it->second.state != AllocationState::kEnded;
}

// --- The database

void Model::CheckStore(db::Store& store) {
  for (const auto& [id, study] : studies_) {
    const auto row = store.GetStudy(id);
    if (!row.ok()) {
      world_.Violation("study ", id, " is lost: ", row.status().ToString());
      continue;
    }
    if (row->state != study.state) world_.Violation("study ", id, " has another state in the database");
    db::RunFilter filter;
    filter.study_id = id;
    const auto runs = store.ListRuns(filter);
    if (!runs.ok() || static_cast<int64_t>(runs->size()) != study.runs) {
      world_.Violation("study ", id, " does not have its ", study.runs, " runs");
      continue;
    }
    for (const db::RunRow& run : *runs) {
      const auto known = runs_.find(run.id);
      if (known == runs_.end() || known->second.state != run.state)
        world_.Violation("run ", run.id, " has another state in the database");
    }
  }
  for (const int64_t id : deleted_) {
    if (store.GetStudy(id).ok()) world_.Violation("study ", id, " is there after it was deleted");
  }
  for (const std::string& token : unchecked_) {
    if (const auto it = attempts_.find(token); it != attempts_.end())
      CheckStream(store, it->second, token, false);
  }
  unchecked_.clear();
}

void Model::CheckStream(db::Store& store, const Attempt& attempt, const std::string& token, bool points) {
  const auto streams = store.ListStreams(attempt.id);
  if (!streams.ok()) return world_.Violation("the streams of ", token, " cannot be read");
  std::map<int, int64_t> stored;
  for (const db::StreamRow& stream : *streams) stored[stream.rank] = stream.line;
  for (const auto& [rank, lines] : lines_[token]) {
    if (stored[rank] < lines) {
      world_.Violation("attempt ", token, " rank ", rank, ": ", lines, " lines were acknowledged, ",
                       stored[rank], " are stored");
    }
  }
  if (!points) return;
  db::PointFilter filter;
  filter.attempt_id = attempt.id;
  filter.key = "train/loss";
  std::map<int, int64_t> found;
  const absl::Status read = store.ReadPoints(filter, [&](db::Series series) {
    for (size_t i = 0; i < series.line.size(); ++i) {
      const int64_t expected = found[series.rank]++;
      if (series.line[i] != expected || series.value[i] != ValueOf(token, series.rank, expected)) {
        return world_.Violation("attempt ", token, " rank ", series.rank, ": point ", i, " is that of line ",
                                series.line[i]);
      }
    }
  });
  if (!read.ok()) world_.Violation("the points of ", token, " cannot be read: ", read.ToString());
  for (const auto& [rank, lines] : stored) {
    if (found[rank] != lines)
      world_.Violation("attempt ", token, " rank ", rank, " has ", found[rank], " points instead of ", lines);
  }
}

absl::Duration Model::LastReport(const std::string& allocation) const {
  absl::Duration earliest = world_.queue.Steady();
  const auto it = last_reports_.find(allocation);
  if (it == last_reports_.end()) return earliest;
  for (const auto& [node, time] : it->second) earliest = std::min(earliest, time);
  return earliest;
}

void Model::CheckLines(db::Store& store, const std::string& token, const std::vector<int64_t>& lines,
                       bool read) {
  const auto attempt = attempts_.find(token);
  if (attempt == attempts_.end()) return;  // its study was deleted
  const auto streams = store.ListStreams(attempt->second.id);
  if (!streams.ok()) return world_.Violation("the streams of ", token, " cannot be read");
  std::map<int, db::StreamRow> stored;
  for (const db::StreamRow& stream : *streams) stored[stream.rank] = stream;
  bool finished = true;
  for (int rank = 0; rank < static_cast<int>(lines.size()); ++rank) {
    finished = finished && stored[rank].finished;
    if (stored[rank].line < lines[rank])
      world_.Violation("attempt ", token, " rank ", rank, ": ", lines[rank], " lines were written, ",
                       stored[rank].line, " are stored");
  }
  if (read && finished && finished_.contains(token) && attempt->second.state != AttemptState::kSucceeded)
    world_.Violation("attempt ", token, " has finished, and ended as ",
                     static_cast<int>(attempt->second.state));
}

void Model::CheckEnd(db::Store& store) {
  CheckStore(store);
  for (const auto& [request, id] : acknowledged_) {
    if (!studies_.contains(id) && !deleted_.contains(id))
      world_.Violation("study ", id, " was acknowledged and is lost");
  }
  for (const auto& [id, study] : studies_) {
    if (!IsFinal(study.state) && study.pause_reason.empty())
      world_.Violation("study ", id, " of ", study.owner, " is neither final nor paused");
  }
  for (const auto& [token, attempt] : attempts_) {
    if (!IsFinal(attempt.state)) world_.Violation("attempt ", token, " is not final");
    CheckStream(store, attempt, token, true);
    if (attempt.state == AttemptState::kSucceeded && !finished_.contains(token))
      world_.Violation("attempt ", token, " succeeded, and its ranks have not finished");
    if (attempt.state == AttemptState::kSucceeded && runs_.at(attempt.run).state != RunState::kSucceeded)
      world_.Violation("attempt ", token, " succeeded, and its run did not");
  }
  for (const auto& [token, allocation] : allocations_) {
    if (allocation.state != AllocationState::kEnded) world_.Violation("allocation ", token, " has not ended");
  }
  for (const auto& [run, live] : live_ranks_) {
    for (const std::string& token : live) world_.Violation("ranks of ", token, " are still live");
  }
}

}  // namespace scalelab::simulation
