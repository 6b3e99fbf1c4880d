// The coordinator's state: the rows of the database that can still change, and the reports of workers and of
// the scheduler. The core thread owns the state, so it needs no locks.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
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
  std::string reason;       // how the last allocation ended
};

// Consecutive failed attempts of a run.
struct FailedAttempts {
  int count = 0;
  int storage_errors = 0;  // number of consecutive attempts that ended with STORAGE_ERROR
};

// The runs that a single allocation of a group executes: all runs of a block, or, if the study has
// allocations of several shapes, the runs of a block with the same shape.
struct BlockPart {
  int block = 0;  // index of the repeat
  int shape = 0;  // index into LiveStudy::shapes
  // NOLINTNEXTLINE(modernize-use-nullptr): the compiler adds the 0.
  auto operator<=>(const BlockPart&) const = default;
};

struct LiveAllocation;
struct LiveAttempt;

// The ids of a study's allocations that have not ended, and what decisions need to know about all of them.
class StudyAllocations {
 public:
  // An allocation that serves and has no attempt.
  struct Unoccupied {
    std::optional<BlockPart> part;
    int nodes = 0;
  };

  // Adds the allocation, or records its present state: whether it serves and holds (see Serves and Holds), its part, and
  // whether it has an attempt.
  void Update(const LiveAllocation& allocation);
  void Remove(int64_t id);

  auto begin() const { return ids_.begin(); }
  auto end() const { return ids_.end(); }
  size_t size() const { return ids_.size(); }
  bool empty() const { return ids_.empty(); }
  size_t serving() const { return serving_.size(); }
  size_t holding() const { return parts_.size(); }
  // Returns the first allocation other than `except` that holds the part, or 0.
  int64_t HolderOf(BlockPart part, int64_t except = 0) const;
  const std::map<int64_t, Unoccupied>& unoccupied() const { return unoccupied_; }  // by id

 private:
  void ForgetState(int64_t id);

  std::set<int64_t> ids_, serving_;
  std::map<int64_t, std::optional<BlockPart>> parts_;  // of those that hold
  std::set<std::pair<BlockPart, int64_t>> holders_;    // the parts in parts_
  std::map<int64_t, Unoccupied> unoccupied_;
};

// A study that is not final, with all its runs.
struct LiveStudy {
  db::StudyRow row;
  v1::StudySpec spec;  // defaults filled in, without the grid
  // Shapes of the allocations, the largest first. With AllocationMode PER_RUN, each run has its
  // own shape instead.
  std::vector<AllocationShape> shapes;
  CellList cells;  // cells with runs; excluded cells are in the database only
  // Longest duration of a run of each cell; for a run that its allocation's time limit ended, the time that
  // it had. 0 means not known.
  std::vector<db::Micros> longest;
  db::Micros longest_of_all = 0;     // maximum of `longest`
  std::map<int, db::Micros> latest;  // by cell: duration of the processes of its last successful run
  std::vector<db::RunRow> runs;      // by position
  std::vector<int> cell_of;          // by position: index into cells
  std::map<int, int> reruns;         // by position: number of attempts that failed because they were noisy
  std::set<int> queued;              // positions of queued runs that may begin; the smallest is next
  std::map<int, FailedAttempts> failed_attempts;  // by position
  // Positions of queued runs whose last attempt failed, and the time of the next attempt. They move to `queued`
  // at that time.
  std::map<int, db::Micros> delayed;
  // With adaptive_repeats: positions of queued runs in blocks that may not be needed. They do not begin. They
  // move to `queued` if the results of the earlier blocks are not precise enough.
  std::set<int> later;
  bool assessing = false;           // an assessment of the results is in flight
  int failed_assessments = 0;       // number of consecutive failed assessments
  db::Micros assess_at = 0;         // no assessment is requested before this time
  std::array<int64_t, 7> counts{};  // runs by db::RunState
  StudyAllocations allocations;     // UpdateAllocation and RemoveAllocation change it
  // Consecutive allocations that ended before they executed an attempt, by their run (0: allocations of
  // the whole study).
  std::map<int64_t, FailedAllocations> failed_allocations;
  double gpu_seconds = 0;  // GPU-seconds of allocations that have ended
  int storage_errors = 0;  // number of consecutive attempts that ended with STORAGE_ERROR
  int64_t revision = 1;    // increases with every change that watchers see
  // By position: number of steps of the newest checkpoint of all attempts that have ended.
  std::map<int, int64_t> checkpoints;

  // Positions of the runs that have an allocation of their own. Empty unless the AllocationMode is PER_RUN.
  // UpdateAllocation and RemoveAllocation change it.
  std::set<int> allocated;
  // Positions of the runs with the state QUEUED that have no allocation of their own. Empty unless the AllocationMode is
  // PER_RUN. UpdateUnallocated changes it.
  std::set<int> unallocated;

  // Returns the position of a run, or -1 if the study has no run with this id.
  int PositionOf(int64_t run_id) const;
  // Adds an allocation of this study. Call it again after each change of what StudyAllocations::Update records.
  void UpdateAllocation(const LiveAllocation& allocation);
  // Removes an allocation that has ended.
  void RemoveAllocation(const LiveAllocation& allocation);
  // Removes all allocations.
  void ForgetAllocations();
  // Call it after each change of the state of the run at this position.
  void UpdateUnallocated(int position);
  // Records the duration of the run at this position, or the time that it had.
  void RunTook(int position, db::Micros time);
  // Moves all delayed runs to `queued`.
  void EndDelays();
  // Records an attempt that has ended.
  void AttemptEnded(int position, const db::AttemptRow& attempt);
  // Adds steps of rank 0 to the durations of the attempt's steps, without the warm-up steps.
  void CountSteps(const NumberedSteps& numbered, LiveAttempt& attempt) const;
};

// Clears the sections of the specification that define the cells. They may be long, and the cells
// have their values.
void ForgetGrid(v1::StudySpec& spec);

// The progress of one rank of a live attempt.
struct RankState {
  db::StreamRow stream;
  std::map<std::string, double> finish_metrics;
  StepTimes steps;  // steps of rank 0 after the warm-up; LiveStudy::CountSteps adds them
};

// The recovery of an attempt whose workers have ended: the coordinator reads the rest of its event files.
struct Recovery {
  int64_t number = 0;       // number of the request in flight; 0: none
  db::Micros since = 0;     // when the wait for the response, or for a free reader, began
  db::Micros began = 0;     // when the first request was made, not counting `away`; 0: none was made
  db::Micros retry_at = 0;  // after a failed read: when to try again
  db::Micros failing = 0;   // time of the first of the consecutive failed reads; 0: the last read succeeded
  int failures = 0;         // number of consecutive failed reads
  std::string error;        // error of the last failed read
  int next_rank = 0;        // the event files of earlier ranks have been read
  int64_t bytes = 0;        // number of bytes read so far
  std::string problem;      // why events may be missing
  std::optional<v1::SynchronizeRequest::AttemptStatus> end;  // the end that the worker recorded
  std::map<std::string, std::string> software;
  db::Micros progress = 0;  // when the last request that read something was answered; 0: none was
  db::Micros away = 0;      // since when the files cannot be read before a user acts; 0: they can be read
  bool slow = false;        // it has exceeded a limit of time or bytes, and pauses after each request
};

// An attempt that is not final.
struct LiveAttempt {
  db::AttemptRow row;
  int64_t study_id = 0;
  int position = 0;  // position of the run in its study
  std::vector<RankState> ranks;
  int64_t step = 0;  // last step of rank 0
  int64_t total_steps = 0;
  std::optional<double> train_loss;
  bool reported = false;    // a worker has reported the attempt
  std::string reported_by;  // instance of that worker
  // Instance of the worker of the first node when the attempt was assigned; empty after a restart of the coordinator.
  std::string assigned_to;
  // Why the coordinator stops the attempt; "" if a user cancelled it. `row` has it as the message from the
  // stop on.
  std::string stop_reason;
  // When the timeout of its stop began, see Lifecycle::ObserveStop; 0: it is not being stopped.
  db::Micros stopping_since = 0;
  // The final report of each node's worker, by node index. The attempt has ended when every node has
  // a final report.
  std::map<int, v1::SynchronizeRequest::AttemptStatus> ended;
  // Time since which an ended attempt waits for a poll that shows whether its job is ending too; 0: it
  // does not wait.
  db::Micros held_since = 0;
  bool cut_short = false;  // ended by the time limit of an allocation that had executed other runs before
  // Set when its workers have ended. `row` then has the cause of the failure and, unless the attempt is being
  // stopped, its message, for the case that the events do not show that the attempt has succeeded.
  std::optional<Recovery> recovery;
  std::vector<v1::NodeInfo> hardware;  // hardware of its nodes, for the time after its workers have ended
  v1::CodeSnapshot code;               // of a user's program, as reported last; empty if it is not known
  // Whether it was assigned while the allocation executed another attempt. Then it may end
  // without having begun.
  bool assigned_ahead = false;
  db::Micros turn_since = 0;  // when the allocation began to execute it, if later than its assignment
  // Indexes of the nodes whose workers have reported since the stop, or since their job was suspended. The
  // responses to these reports request the stop.
  std::set<int> stop_sent;

  // Returns when the allocation began to execute it.
  db::Micros began() const { return std::max(row.assigned, turn_since); }
  int nodes() const { return 1 + static_cast<int>(std::count(row.nodes.begin(), row.nodes.end(), ',')); }
};

// The last report of a worker.
struct WorkerState {
  std::string node, instance, version;
  v1::NodeInfo info;
  db::Micros last_seen = 0;
  bool leaving = false;
  int queue_limit = 0;  // number of waiting attempts that the worker accepts in addition to the running one
};

// Returns whether an allocation has not started.
inline bool Waits(db::AllocationState state) {
  return state == db::AllocationState::kIntended || state == db::AllocationState::kPending;
}

// The owner and the partition of a pending job: the number of pending jobs is limited for each pair.
using PendingQueue = std::pair<std::string, std::string>;
PendingQueue QueueOf(const LiveStudy& study);
PendingQueue QueueOf(const LiveAllocation& allocation);

// An allocation that has not ended.
struct LiveAllocation {
  db::AllocationRow row;
  std::map<int, WorkerState> workers;  // by node index
  std::set<std::string> replaced;      // instances of workers that newer instances have replaced
  int64_t attempt_id = 0;              // the current attempt; 0: none
  std::optional<BlockPart> part;       // for a group: the part of its newest attempt
  std::deque<int64_t> next_attempts;   // attempts that its worker begins afterwards, in this order
  int64_t generation = 0;              // generation of its desired state
  bool submitted = false;              // this process has submitted its job
  bool submitting = false;             // a call that submits its job is queued or in flight
  int refusals = 0;                    // number of consecutive temporary errors of submits
  int unknown_errors = 0;              // number of submits with the error UNKNOWN since the last other answer
  int forgotten = 0;                   // consecutive times that an accepted job did not exist at a poll
  std::vector<std::string> excluded;   // nodes that its job excludes
  bool any_node = false;               // its job must not exclude nodes, because the scheduler refused that
  bool cancel_sent = false;
  int cancels = 0;                 // number of calls that cancelled its job
  db::Micros cancel_again_at = 0;  // when to cancel again, if the job still exists
  bool ending = false;             // the scheduler reports that the job is ending
  int served = 0;                  // number of its attempts
  bool charge_moved = false;       // charged_until was moved with the wall clock, and is not stored yet
  bool withdrawn = false;          // released because no attempt of its study may begin
  db::Micros listening_since = 0;  // when it started to run, or when this process started
  db::Micros leaving_since = 0;    // when a worker first reported that it is leaving; 0: none has
  db::Micros retry_at = 0;         // when to submit its job again
  db::Micros ends_at = 0;          // end of its time limit; 0: it is not running, or has no limit
  db::Micros first_cancel = 0;     // when its job was cancelled for the first time; 0: it was not cancelled
  bool cancel_failed = false;      // its job has not ended after many cancels, which users and the log report
  std::string cancel_error;        // error of the last call that cancelled its job; "" if it succeeded
  bool cancelled_earlier = false;  // an earlier process has cancelled its job
  bool suspended = false;          // the scheduler reports that the job is suspended
};

// Returns whether queued runs may still be assigned to the allocation.
inline bool Serves(const LiveAllocation& allocation) {
  return allocation.row.state != db::AllocationState::kReleasing && !allocation.cancel_sent;
}
// Returns whether the allocation has, or may get, an attempt. Such an allocation counts for the limit of its
// study, and no other allocation executes its part.
inline bool Holds(const LiveAllocation& allocation) {
  return allocation.row.state != db::AllocationState::kReleasing || allocation.attempt_id != 0;
}

// The result of the last call of the scheduler.
struct SchedulerHealth {
  std::string error;        // one sentence; "" if the call succeeded
  db::Micros since = 0;     // time of the first of the consecutive failed calls; 0: the last call succeeded
  db::Micros next_ask = 0;  // time of the next poll; 0: no poll is needed
};

struct State {
  // Studies and attempts by id. unique_ptr keeps references valid while other entries are added and removed.
  std::unordered_map<int64_t, std::unique_ptr<LiveStudy>> studies;
  std::unordered_map<int64_t, std::unique_ptr<LiveAttempt>> attempts;
  std::unordered_map<int64_t, std::unique_ptr<LiveAllocation>> allocations;
  std::set<int64_t> reassess;  // studies whose assessment is due and not requested yet
  std::unordered_map<std::string, int64_t> attempt_by_token;
  std::unordered_map<std::string, int64_t> allocation_by_token;
  // Maps (owner, request id) of the newest submits to the study and the hash of its specification. It covers
  // studies that are committed after a handler has searched the database for the request id. The handler
  // finds older studies in the database.
  std::map<std::pair<std::string, std::string>, std::pair<int64_t, size_t>> requests;
  std::deque<std::pair<std::string, std::string>> request_order;
  FairQueue waiting;          // studies that need another allocation
  std::set<int64_t> delayed;  // studies that wait for another allocation because earlier allocations failed
  int64_t last_study_id = 0, last_cell_id = 0, last_run_id = 0, last_attempt_id = 0, last_allocation_id = 0;
  int64_t last_generation = 0;
  std::set<int64_t> recovering;  // attempts with a recovery
  int64_t last_read = 0;         // number of the last request to read event files
  // Times of the last responses, by directory of runs (the directory of an attempt without its last three parts).
  std::map<std::string, db::Micros, std::less<>> reads_answered;
  std::map<PendingQueue, int> pending;  // number of intended and pending allocations; no entry: 0
  // Number of changes of final studies: retries and deletions.
  int64_t final_changes = 0;
  SchedulerHealth scheduler;
  Policy policy;
  UsageLedger usage;   // the charged usage; accounting.h adds the rest
  db::DrainRow drain;  // drain mode: while it is on, no attempt begins and no job is submitted
  BadNodes bad_nodes;
  NoiseReferences noise;         // earlier measurements of the nodes
  db::Micros commit_failed = 0;  // time of the last commit if it failed; 0: it succeeded

  LiveStudy* study(int64_t id) const;
  LiveAttempt* attempt(int64_t id) const;
  LiveAllocation* allocation(int64_t id) const;
  // Returns the current attempt of the allocation and the attempts that follow it, in order.
  std::vector<LiveAttempt*> attempts_of(const LiveAllocation& allocation) const;
};

}  // namespace scalelab::server
