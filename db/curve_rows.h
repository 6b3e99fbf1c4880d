// A cache of the rows of large studies' curves. Reading 100,000 of them from the database takes most of the time of a curve.
//
// The cache is never older than the database: the writer reports each run whose rows it has changed, after the commit and
// before it acknowledges it, and the next call reads these runs again.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "db/records.h"
#include "db/sqlite/sqlite.h"

namespace scalelab::db {

// The rows of one study. Not thread-safe.
class KeptCurveRows {
 public:
  // Reads the runs `changed` and all runs whose rows are not in memory, and returns the rows like
  // Store::ListCurveRows. The caller has a read transaction. After an error, no row is kept.
  absl::StatusOr<SharedCurveRows> Update(Database& db, int64_t study_id, std::vector<int64_t> changed);
  void Clear();
  size_t size() const { return rows_->size(); }

 private:
  absl::Status ReadAll(Database& db, int64_t study_id, int64_t first, int64_t last);
  // Reads the runs `changed` again, in ranges of ids. Changes a copy of the rows, because callers may still use
  // the present ones. Returns false if the study has runs that are not in the copy.
  absl::StatusOr<bool> ReadChanged(Database& db, int64_t study_id, std::vector<int64_t> changed);

  int64_t first_ = 0, last_ = -1;  // ids of the study's runs
  SharedCurveRows rows_ = std::make_shared<const std::vector<CurveRow>>();
  std::vector<uint32_t> by_id_;  // indexes of the rows, ordered by id; empty if the rows are ordered by id
};

// Thread-safe.
class CurveRowCache {
 public:
  // Caches only studies with at least `fewest` rows, and at most `most` rows in total.
  CurveRowCache(size_t fewest, size_t most) : fewest_(fewest), most_(most) {}

  // Calls its argument with a connection for reading, once or, after an error, twice.
  using Reader = absl::FunctionRef<absl::Status(absl::FunctionRef<absl::Status(Database&)>)>;
  // As Store::ListCurveRows.
  absl::StatusOr<SharedCurveRows> List(int64_t study_id, Reader reader);

  // Reports that rows of these runs may have changed. Must be called after each commit, even a failed one,
  // and before the commit is acknowledged.
  void Changed(std::span<const int64_t> run_ids);
  // Frees the rows of studies that were not listed for some time.
  void DropUnused(absl::Time now);

 private:
  struct Study {
    int64_t id = 0;
    absl::Mutex mutex;  // must be locked before mutex_
    KeptCurveRows rows ABSL_GUARDED_BY(mutex);
    // The following members are guarded by mutex_ of the cache.
    std::vector<int64_t> changed;  // ids of runs that have changed since the rows were read
    bool all_changed = false;      // more runs have changed than `changed` may contain
    size_t size = 0;               // number of rows when they were read
    absl::Time listed = absl::InfinitePast();
  };
  std::shared_ptr<Study> Find(int64_t study_id, bool add);
  // Removes studies until at most most_ rows are left. Removes the least recently listed study first.
  void Shrink() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t fewest_, most_;
  absl::Mutex mutex_;
  std::list<std::shared_ptr<Study>> studies_ ABSL_GUARDED_BY(mutex_);  // most recently listed first
};

}  // namespace scalelab::db
