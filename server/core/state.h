// What the coordinator knows while it runs: everything of the database that can still change, plus what only
// live connections can tell. Owned by the core thread; nothing here locks.
#pragma once

#include <algorithm>
#include <array>
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
#include "study/rules.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"
#include "scalelab/v1/worker.pb.h"
#include "server/core/fair_queue.h"

namespace scalelab::server {

// A cell that runs are made of; excluded ones are in the database only.
struct CellState {
  int64_t id = 0;
  v1::RunSpec spec;  // seed is that of repeat 0
  google::protobuf::Struct key;
};

struct StudyState {
  db::StudyRow row;
  v1::StudySpec spec;     // defaults filled in
  AllocationShape shape;  // of its largest cell
  std::vector<CellState> cells;
  std::vector<db::Micros>
      longest;  // by cell: longest a run of it took, or had when its time was up; 0 not known
  std::vector<db::RunRow> runs;     // by position
  std::vector<int> cell_of;         // by position: index into cells
  std::set<int> queued;             // positions that wait; the smallest goes next
  std::array<int64_t, 6> counts{};  // runs by db::RunState
  std::set<int64_t> allocations;    // not ended
  int64_t revision = 1;             // grows with every change a watcher would see
};

// One rank's progress while its attempt is live.
struct RankState {
  db::StreamRow stream;
  std::map<std::string, double> finish_metrics;
};

struct AttemptState {
  db::AttemptRow row;
  int64_t study_id = 0;
  int position = 0;  // of its run in the study
  std::vector<RankState> ranks;
  int64_t step = 0;  // last step of rank 0
  int64_t total_steps = 0;
  std::optional<double> train_loss;
  bool reported = false;    // a worker has said that it knows it
  std::string reported_by;  // that worker's instance
  db::Micros stopping_since = 0;
  // What the workers of its nodes said of its end there, by place; it is over when all have.
  std::map<int, v1::SynchronizeRequest::AttemptStatus> ended;
  // It has ended, and whether because its job does is for the scheduler to say. 0: no such question.
  db::Micros held_since = 0;
  bool cut_short = false;  // by the time limit of an allocation that had served others before

  int nodes() const { return 1 + static_cast<int>(std::count(row.nodes.begin(), row.nodes.end(), ',')); }
};

struct WorkerState {
  std::string node, instance, version;
  v1::NodeInfo info;
  db::Micros last_seen = 0;
  bool leaving = false;
};

// Asked for, or about to be, and not begun.
inline bool Waits(db::AllocationState state) {
  return state == db::AllocationState::kIntended || state == db::AllocationState::kPending;
}

struct AllocationState {
  db::AllocationRow row;
  std::map<int, WorkerState> workers;  // by node index
  int64_t attempt_id = 0;              // the one it serves now
  int64_t generation = 0;              // of its desired state
  bool submitted = false;              // handed to the scheduler by this process
  bool cancel_sent = false;
  bool ending = false;             // the scheduler says that it is on its way out
  int served = 0;                  // attempts so far, as far as this process knows
  db::Micros listening_since = 0;  // when it began to run, or this process to listen
  db::Micros leaving_since = 0;    // when the first of its workers was asked to leave; 0: none was
  db::Micros retry_at = 0;         // when to ask the scheduler again
  db::Micros ends_at = 0;          // when its time limit ends it; 0 when it does not run or nobody says
};

// Whether the scheduler answers, as its last answer told.
struct SchedulerHealth {
  std::string error;        // why it does not, one sentence; empty when it does
  db::Micros since = 0;     // of the first question without an answer; 0 when it answers
  db::Micros next_ask = 0;  // when it is asked again; 0 when nothing has to be asked
};

struct State {
  // Keys are ids. unique_ptr keeps references valid while others come and go.
  std::unordered_map<int64_t, std::unique_ptr<StudyState>> studies;
  std::unordered_map<int64_t, std::unique_ptr<AttemptState>> attempts;
  std::unordered_map<int64_t, std::unique_ptr<AllocationState>> allocations;
  std::unordered_map<std::string, int64_t> attempt_by_token;
  std::unordered_map<std::string, int64_t> allocation_by_token;
  // "owner\nrequest id" of the newest submits -> study, hash of its spec. It closes the gap between a
  // handler's look into the database and the core thread's turn; older ones are found in the database.
  std::unordered_map<std::string, std::pair<int64_t, size_t>> requests;
  std::deque<std::string> request_order;
  FairQueue waiting;  // studies that want an allocation and have not enough
  int64_t last_study_id = 0, last_cell_id = 0, last_run_id = 0, last_attempt_id = 0, last_allocation_id = 0;
  int64_t last_generation = 0;
  int pending_allocations = 0;  // intended or pending
  SchedulerHealth scheduler;

  StudyState* study(int64_t id) const;
  AttemptState* attempt(int64_t id) const;
  AllocationState* allocation(int64_t id) const;
};

}  // namespace scalelab::server
