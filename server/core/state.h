// The coordinator's state: the rows of the database that can still change, plus what workers and the
// scheduler reported. Owned by the core thread; nothing here locks.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "db/records.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"
#include "scalelab/v1/worker.pb.h"
#include "server/core/fair/fair_queue.h"
#include "server/core/fair/policy.h"
#include "server/core/nodes/bad_nodes.h"
#include "server/core/step_times.h"
#include "server/noise/references.h"
#include "study/rules.h"

namespace scalelab::server {

struct FailedAllocations {
  int count = 0;
  db::Micros retry_at = 0;  // no allocation is made before this time
  std::string reason;       // how the last one ended
};

// A study that is not final, with all its runs.
struct LiveStudy {
  db::StudyRow row;
  v1::StudySpec spec;  // defaults filled in, without the grid
  // Of its allocations, the largest first. With AllocationMode PER_RUN, each run has its own.
  std::vector<AllocationShape> shapes;
  CellList cells;  // with runs; excluded cells are in the database only
  // By cell: longest time that a run took, or had when its allocation's time limit ended it; 0: not known.
  std::vector<db::Micros> longest;
  db::Micros longest_of_all = 0;     // the largest of them
  std::map<int, db::Micros> latest;  // by cell: time that the processes of its last successful run took
  std::vector<db::RunRow> runs;      // by position
  std::vector<int> cell_of;          // by position: index into cells
  std::map<int, int> reruns;         // by position: attempts that failed because they were noisy
  std::set<int> queued;              // positions of queued runs; the smallest goes next
  // With adaptive_repeats: positions of queued runs of blocks that may not be needed. They do not begin; they move to
  // `queued` when the results of the blocks before them are not precise enough.
  std::set<int> later;
  bool assessing = false;           // an assessment of the results was requested and not answered
  int failed_assessments = 0;       // in a row
  db::Micros assess_at = 0;         // no assessment is requested before this time
  std::array<int64_t, 7> counts{};  // runs by db::RunState
  std::set<int64_t> allocations;    // that have not ended
  // Allocations that ended in a row before they served an attempt, by their run (0: those of the whole study).
  std::map<int64_t, FailedAllocations> failed_allocations;
  double gpu_seconds = 0;  // of allocations that have ended
  int storage_errors = 0;  // attempts in a row that ended with STORAGE_ERROR
  int64_t revision = 1;    // grows with every change that watchers see
  // By position: number of steps of the newest checkpoint that an attempt which has ended wrote.
  std::map<int, int64_t> checkpoints;

  // Records how long the run at this position took, or had.
  void RunTook(int position, db::Micros time);
  // Records an attempt that has ended.
  void AttemptEnded(int position, const db::AttemptRow& attempt);
};

// Clears the sections that make the cells: they may be long, and the cells have their values.
void ForgetGrid(v1::StudySpec& spec);

// The progress of one rank of a live attempt.
struct RankState {
  db::StreamRow stream;
  std::map<std::string, double> finish_metrics;
  StepTimes steps;  // of rank 0, after the warm-up; without those before a restart of the coordinator
};

// The end of an attempt whose workers are gone: the coordinator reads the rest of its event files first.
struct Recovery {
  int64_t number = 0;       // of the request that is in flight; 0: none is
  db::Micros since = 0;     // when the wait for its answer, or for a free reader, began
  db::Micros began = 0;     // when the first request was made; 0: none was
  db::Micros retry_at = 0;  // after a failed read: when to try again
  db::Micros failing = 0;   // time of the first of the failed reads; 0: the last one succeeded
  int failures = 0;         // in a row
  std::string error;        // of the last failed read
  int next_rank = 0;        // the event files of the ranks before it have been read
  int64_t bytes = 0;        // that were read
  std::string problem;      // why events may be missing
  std::optional<v1::SynchronizeRequest::AttemptStatus> end;  // what the worker recorded
  std::map<std::string, std::string> software;
};

// An attempt that is not final.
struct LiveAttempt {
  db::AttemptRow row;
  int64_t study_id = 0;
  int position = 0;  // of the run in its study
  std::vector<RankState> ranks;
  int64_t step = 0;  // last step of rank 0
  int64_t total_steps = 0;
  std::optional<double> train_loss;
  bool reported = false;          // a worker has reported the attempt
  std::string reported_by;        // instance of that worker
  std::string stop_reason;        // why the coordinator stops it; empty if a user cancelled it
  db::Micros stopping_since = 0;  // 0: not stopping
  // By node index: the final report of the node's worker. The attempt has ended when there is one
  // for each node.
  std::map<int, v1::SynchronizeRequest::AttemptStatus> ended;
  // Since when an ended attempt waits for a poll that shows whether its job is ending too. 0: it
  // does not wait.
  db::Micros held_since = 0;
  bool cut_short = false;  // by the time limit of an allocation that had served other runs before
  // Set when its workers are gone. `row` then has the cause and the message of the failure, in case that the events do
  // not show that the attempt has succeeded.
  std::optional<Recovery> recovery;
  std::vector<v1::NodeInfo> hardware;  // of its nodes, when no worker reports it any more
  // Assigned while the allocation served another attempt, so that it may have ended without having begun.
  bool assigned_ahead = false;
  db::Micros turn_since = 0;  // when the allocation began to serve it, if that was later than its assignment

  int nodes() const { return 1 + static_cast<int>(std::count(row.nodes.begin(), row.nodes.end(), ',')); }
};

// The last report of a worker.
struct WorkerState {
  std::string node, instance, version;
  v1::NodeInfo info;
  db::Micros last_seen = 0;
  bool leaving = false;
  int queue_limit = 0;  // number of attempts that it holds besides the one that runs
};

// Returns whether an allocation has not started.
inline bool Waits(db::AllocationState state) {
  return state == db::AllocationState::kIntended || state == db::AllocationState::kPending;
}

// The owner and the partition of a pending job: the number of pending jobs is limited for each pair.
using PendingQueue = std::pair<std::string, std::string>;
PendingQueue QueueOf(const LiveStudy& study);
struct LiveAllocation;
PendingQueue QueueOf(const LiveAllocation& allocation);

// The runs that one allocation of a group serves without another one in between: those of a block, or, if the study has
// allocations of several shapes, those of a block that have the same shape.
struct BlockPart {
  int block = 0;  // a repeat
  int shape = 0;  // index into LiveStudy::shapes
  // NOLINTNEXTLINE(modernize-use-nullptr): the compiler adds the 0.
  auto operator<=>(const BlockPart&) const = default;
};

// An allocation that has not ended.
struct LiveAllocation {
  db::AllocationRow row;
  std::map<int, WorkerState> workers;  // by node index
  std::set<std::string> replaced;      // instances of workers that later ones have replaced
  int64_t attempt_id = 0;              // the attempt it serves now; 0: none
  std::optional<BlockPart> part;       // of a group: the part of its newest attempt
  std::deque<int64_t> next_attempts;   // that its worker begins after that one, in this order, without a call
  int64_t generation = 0;              // of its desired state
  bool submitted = false;              // this process has submitted its job
  bool submitting = false;             // a call that submits its job is queued or in flight
  int refusals = 0;                    // temporary errors of submits in a row
  std::vector<std::string> excluded;   // nodes that its job must not get
  bool any_node = false;               // the scheduler refused its job when it excluded nodes
  bool cancel_sent = false;
  int cancels = 0;                 // calls that cancelled its job
  db::Micros cancel_again_at = 0;  // when to cancel again, if the job still exists
  bool ending = false;             // the scheduler reports that the job is ending
  int served = 0;                  // number of attempts
  bool charge_moved = false;       // charged_until was moved with the wall clock, and is not stored
  bool withdrawn = false;          // released because no attempt of its study may begin
  db::Micros listening_since = 0;  // when it started to run, or when this process started
  db::Micros leaving_since = 0;    // when the first of its workers reported that it leaves; 0: none has
  db::Micros retry_at = 0;         // when to submit its job again
  db::Micros ends_at = 0;  // end of its time limit; 0: it does not run, or the scheduler reports no limit
};

// Returns whether queued runs may still be assigned to the allocation.
inline bool Serves(const LiveAllocation& allocation) {
  return allocation.row.state != db::AllocationState::kReleasing && !allocation.cancel_sent;
}

// The result of the last call of the scheduler.
struct SchedulerHealth {
  std::string error;        // one sentence; empty when the call succeeded
  db::Micros since = 0;     // time of the first of the failed calls; 0: the last call succeeded
  db::Micros next_ask = 0;  // time of the next poll; 0: no poll is needed
};

struct State {
  // By id. unique_ptr keeps references valid while other entries are added and removed.
  std::unordered_map<int64_t, std::unique_ptr<LiveStudy>> studies;
  std::unordered_map<int64_t, std::unique_ptr<LiveAttempt>> attempts;
  std::unordered_map<int64_t, std::unique_ptr<LiveAllocation>> allocations;
  std::set<int64_t> reassess;  // studies that wait for an assessment which is not requested yet
  std::unordered_map<std::string, int64_t> attempt_by_token;
  std::unordered_map<std::string, int64_t> allocation_by_token;
  // (owner, request id) of the newest submits -> study, hash of its specification. It covers studies
  // that are committed after a handler has searched the database for the request id; the handler finds
  // older ones itself.
  std::map<std::pair<std::string, std::string>, std::pair<int64_t, size_t>> requests;
  std::deque<std::pair<std::string, std::string>> request_order;
  FairQueue waiting;          // studies that need another allocation
  std::set<int64_t> delayed;  // studies that need another allocation, and wait because earlier ones failed
  int64_t last_study_id = 0, last_cell_id = 0, last_run_id = 0, last_attempt_id = 0, last_allocation_id = 0;
  int64_t last_generation = 0;
  std::set<int64_t> recovering;         // attempts with a recovery
  int64_t last_read = 0;                // number of the last request to read event files
  db::Micros last_read_answered = 0;    // when a request was answered
  std::map<PendingQueue, int> pending;  // number of intended and pending allocations; no entry: 0
  // Number of changes of studies that were final: retries and deletions.
  int64_t final_changes = 0;
  SchedulerHealth scheduler;
  Policy policy;
  UsageLedger usage;   // without what is not yet charged, see accounting.h
  db::DrainRow drain;  // while it is on, no attempt begins and no job is submitted
  BadNodes bad_nodes;
  NoiseReferences noise;         // what nodes usually show
  db::Micros commit_failed = 0;  // time of the last commit if it failed; 0: it succeeded

  LiveStudy* study(int64_t id) const;
  LiveAttempt* attempt(int64_t id) const;
  LiveAllocation* allocation(int64_t id) const;
  // Returns the attempt that the allocation serves and those that follow, in order; empty if there is none.
  std::vector<LiveAttempt*> attempts_of(const LiveAllocation& allocation) const;
};

}  // namespace scalelab::server
