// The store's only writing connection, which also runs the checkpoints.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "db/sqlite.h"
#include "db/store.h"

namespace scalelab::db {

// Thread-safe: a mutex serializes commits.
class Writer {
 public:
  // `db` is at the newest schema.
  explicit Writer(std::unique_ptr<Database> db) : db_(std::move(db)) {}

  // As Store::Commit. Sometimes runs a checkpoint, on the calling thread.
  absl::Status Commit(const WriteBatch& batch);

 private:
  struct SeriesKey {
    int64_t attempt_id;
    int64_t key_id;
    int rank;
    bool operator==(const SeriesKey&) const = default;
    template <class H>
    friend H AbslHashValue(H h, const SeriesKey& k) {
      return H::combine(std::move(h), k.attempt_id, k.key_id, k.rank);
    }
  };

  absl::Status Write(const WriteBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status PutRuns(const std::vector<RunRow>& runs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status PutSummaries(const std::vector<RunSummary>& summaries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Append(const StreamAppend& append) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AppendColumn(const StreamAppend& append, const PointColumn& column)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<int64_t> KeyId(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<int64_t> SeriesId(const SeriesKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status DeleteStudy(int64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RaiseCounters(const WriteBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Checkpoint() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::unique_ptr<Database> db_ ABSL_GUARDED_BY(mutex_);
  // Caches of the tables' contents; cleared when a transaction is rolled back.
  absl::flat_hash_map<std::string, int64_t> key_ids_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<SeriesKey, int64_t> series_ids_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> counters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace scalelab::db
