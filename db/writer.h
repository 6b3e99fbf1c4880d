// The store's only writing connection, which also runs the checkpoints.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
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

  absl::Status Write(const WriteBatch& batch);
  absl::Status PutRuns(const std::vector<RunRow>& runs);
  absl::Status PutSummaries(const std::vector<RunSummary>& summaries);
  absl::Status Append(const StreamAppend& append);
  absl::Status AppendColumn(const StreamAppend& append, const PointColumn& column);
  absl::StatusOr<int64_t> KeyId(const std::string& name);
  absl::StatusOr<int64_t> SeriesId(const SeriesKey& key);
  absl::Status DeleteStudy(int64_t id);
  absl::Status RaiseCounters(const WriteBatch& batch);
  void Checkpoint();

  std::mutex mutex_;  // guards all members below; private methods require it
  std::unique_ptr<Database> db_;
  // Caches of the tables' contents; cleared when a transaction is rolled back.
  absl::flat_hash_map<std::string, int64_t> key_ids_;
  absl::flat_hash_map<SeriesKey, int64_t> series_ids_;
  std::map<std::string, int64_t> counters_;
};

}  // namespace scalelab::db
