// Checks the invariants. Records everything that was acknowledged to clients and workers, all committed rows
// and all live ranks, and compares them with the database.
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "db/store.h"
#include "server/core/state.h"
#include "server/scheduler/scheduler.h"
#include "tests/simulation/world.h"

namespace scalelab::simulation {

// Returns the value that a rank writes into a line of its event file.
double ValueOf(const std::string& token, int rank, int64_t line);

class Model {
 public:
  explicit Model(World& world) : world_(world) {}

  // Called when the coordinator has committed `batch`. Checks that states changed along legal transitions.
  void Committed(const db::WriteBatch& batch);
  // Called when Slurm accepts a new job. Checks that its allocation is durable and has not ended.
  void JobAccepted(const server::JobRequest& request);
  // Compares the database with the committed rows, and with what has been acknowledged.
  void CheckStore(db::Store& store);
  // Called for an attempt whose event files were readable. Checks that each rank's first `lines` lines are
  // stored. If the coordinator has `read` them and they show that the attempt has finished, also checks that
  // it has succeeded.
  void CheckLines(db::Store& store, const std::string& token, const std::vector<int64_t>& lines, bool read);
  // Called at the end, when nothing changes any more. Checks that every study is final or paused, and that
  // results are complete.
  void CheckEnd(db::Store& store);

  // Of clients.
  void StudyAcknowledged(const std::string& owner, const std::string& request_id, int64_t id, int64_t runs);
  void CancelAcknowledged(int64_t study);
  void RetryAsked(int64_t study) { retry_asked_.insert(study); }
  void DeleteAsked(int64_t study) { delete_asked_.insert(study); }
  void DeleteAcknowledged(int64_t study);

  // The following functions record actions of workers. `run` is a resource name.
  void RanksStart(const std::string& run, const std::string& token);
  void RanksEnd(const std::string& run, const std::string& token);
  // Returns the number of steps in the run's last checkpoint, or 0 if it has none.
  int64_t CheckpointOf(const std::string& run) const;
  void CheckpointWritten(const std::string& run, int64_t step) { checkpoints_[run] = step; }
  // Returns the number of steps of the run. The first call for a run sets it to `drawn`.
  int64_t LengthOf(const std::string& run, int64_t drawn) {
    return lengths_.emplace(run, drawn).first->second;
  }
  void LinesAcknowledged(const std::string& token, int rank, int64_t lines);
  // Called when the process handles a report of a worker of this allocation.
  void WorkerReports(const std::string& allocation, int node) {
    last_reports_[allocation][node] = world_.queue.Steady();
  }
  // Returns when the process handled the last report of the worker that has not reported for
  // the longest time.
  absl::Duration LastReport(const std::string& allocation) const;
  void AttemptFinished(const std::string& token) { finished_.insert(token); }

  // Called with the state of the coordinator. Compares the usage of users with the times in which their
  // allocations were held.
  void CheckUsage(const server::State& state, db::Micros now);
  // Called with the jobs that wait in Slurm. Checks their limits for each user, and for each study whose
  // runs share allocations.
  void CheckPending(const std::vector<std::string>& tokens);
  // Returns whether the database has an allocation with this token that has not ended.
  bool HasAllocation(const std::string& token) const;
  // Returns whether every study is final or paused, and every allocation has ended.
  bool Settled() const;
  size_t studies() const { return studies_.size(); }
  size_t attempts() const { return attempts_.size(); }

 private:
  struct Attempt {
    int64_t id, run, allocation;
    db::AttemptState state;
  };
  // The runs of a block that allocations of one size serve: study, repeat, nodes.
  using Block = std::tuple<int64_t, int, int>;
  void CommitStudy(const db::StudyRow& row);
  void CommitRun(const db::RunRow& row);
  void NoteProgress(const db::AttemptRow& row);
  void CommitAttempt(const db::AttemptRow& row);
  void CommitAllocation(const db::AllocationRow& row);
  void CommitUsage(const db::UsageRow& row);
  void CheckAllocations(const db::WriteBatch& batch);
  void CheckBlock(const db::AttemptRow& row);
  bool Holds(const db::AllocationRow& row) const;
  void Delete(int64_t study);
  void CheckStream(db::Store& store, const Attempt& attempt, const std::string& token, bool points);

  World& world_;
  // The committed rows.
  std::map<int64_t, db::StudyRow> studies_;
  std::map<int64_t, db::RunRow> runs_;
  std::map<std::string, Attempt> attempts_;               // by token
  std::map<int64_t, std::string> live_attempt_;           // by run
  std::map<int64_t, int> attempts_of_;                    // number of attempts, by run
  std::map<std::string, db::AllocationRow> allocations_;  // by token
  std::map<int64_t, std::string> allocation_token_;       // by id
  std::map<int64_t, int> most_allocations_;               // limit of allocations, by study
  std::map<int64_t, Block> block_of_;  // by allocation of a group: the block of its newest attempt
  std::map<Block, int64_t> holder_;    // the allocation that served a block last
  std::set<int64_t> deleted_;
  std::set<int64_t> paused_, held_;
  bool drained_ = false;
  // The changes that were acknowledged or requested.
  std::map<std::pair<std::string, std::string>, int64_t> acknowledged_;  // owner, request id -> study
  std::set<int64_t> cancelled_, retry_asked_, delete_asked_, delete_acknowledged_;
  std::map<std::string, std::map<int, int64_t>> lines_;  // token -> rank -> lines
  std::set<std::string> unchecked_;                      // tokens with new lines since the last check
  std::set<std::string> finished_;
  std::map<std::string, int64_t> checkpoints_, lengths_;  // by run
  // By run: newest checkpoint of all attempts that have ended.
  std::map<int64_t, int64_t> newest_checkpoint_;
  // Runs whose last attempt ended with its allocation and had a newer checkpoint than all attempts before it.
  std::set<int64_t> progressed_;
  std::map<std::string, std::set<std::string>> live_ranks_;            // run -> tokens
  std::map<std::string, std::map<int, absl::Duration>> last_reports_;  // allocation -> node
};

}  // namespace scalelab::simulation
