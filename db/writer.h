// The store's only writing connection, which also runs the checkpoints.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "db/point_writer.h"
#include "db/sqlite/sqlite.h"
#include "db/store.h"

namespace scalelab::db {

// Writes the times of a run's ranks, or deletes those of an earlier attempt if there are none.
absl::Status PutRunTimes(Database& db, const RunSummary& summary);

// Thread-safe: a mutex serializes commits.
class Writer {
 public:
  // `db` is at the newest schema. A commit that leaves a WAL of `checkpoint_pages` pages runs a checkpoint. After each
  // commit, also after one that failed, `runs_changed` is called with the runs whose rows of run or run_summary it has
  // changed; some may occur twice.
  Writer(std::unique_ptr<Database> db, int checkpoint_pages,
         std::function<void(std::span<const int64_t>)> runs_changed);

  // Implements Store::Commit. Sometimes runs a checkpoint on the calling thread.
  absl::Status Commit(const WriteBatch& batch);
  // Rolls back a commit that an I/O error interrupted before it could be rolled back.
  absl::Status RollBack();
  // Runs `write` in a transaction of its own.
  absl::Status Run(absl::FunctionRef<absl::Status(Database&)> write);
  // As Store::Maintain.
  absl::StatusOr<bool> Maintain();
  // As Store::WriteRows.
  absl::Status WriteRows(absl::FunctionRef<absl::Status(Database&)> write);
  // Implement Store::KeepInvisible and Store::StopKeeping.
  void KeepInvisible(int64_t study_id);
  void StopKeeping(int64_t study_id);

 private:
  absl::Status Write(const WriteBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status PutUsage(const WriteBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status PutRuns(const std::vector<RunRow>& runs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status PutAllocations(const std::vector<AllocationRow>& allocations)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status PutSummaries(const std::vector<RunSummary>& summaries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Requests that the points of final attempts are merged. Call it after their last points were appended.
  absl::Status EndAttempts(const std::vector<AttemptRow>& attempts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status PutNotice(const NoticeRow& notice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Append(const StreamAppend& append) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status DeleteStudies(const std::vector<int64_t>& ids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadCounters() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RaiseCounters(const WriteBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs `write` in a transaction, on a file that is checked before and after it. Reports the runs that it changed.
  absl::Status InTransaction(absl::FunctionRef<absl::Status()> write) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckedTransaction(absl::FunctionRef<absl::Status()> write)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> GiveBackPages() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Checkpoint() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::unique_ptr<Database> db_ ABSL_GUARDED_BY(mutex_);
  PointWriter points_ ABSL_GUARDED_BY(mutex_);
  // The table counter; cleared when a transaction is rolled back.
  std::map<std::string, int64_t> counters_ ABSL_GUARDED_BY(mutex_);
  const int checkpoint_pages_;
  const std::function<void(std::span<const int64_t>)> runs_changed_;
  // Ids of runs that the current transaction has changed.
  std::vector<int64_t> changed_ ABSL_GUARDED_BY(mutex_);
  // Whether a commit since the last complete Maintain, or a commit of an earlier process, may have left
  // work for Maintain.
  bool maintenance_due_ ABSL_GUARDED_BY(mutex_) = true;
  // Studies of KeepInvisible: they are marked as deleted while their rows are being written.
  std::set<int64_t> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace scalelab::db
