// The log of calls that changed something or were refused.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "db/access/access_store.h"
#include "server/time/steady_mutex.h"

namespace scalelab::server {

struct AuditLimits {
  absl::Duration period = absl::Seconds(1);  // between two writes; equal changes between them are one row
  // Equal refused calls within this time are stored as one row.
  absl::Duration refusal_period = absl::Seconds(10);
  int refusals_per_minute = 60;  // rows of different refused calls; further ones are counted in one row
  size_t pending = 100'000;      // maximum number of rows that are not written yet; further rows are lost
};

// Collects entries in memory and writes them in batches on a thread of its own, so that neither calls nor the
// thread of the coordinator wait. Equal calls are one entry with their number, because a call may repeat a
// change that has been made, and costs nothing then: without this, a caller could displace all other entries
// within minutes. Writes a line to the log of the process for each stored entry about a study that was
// submitted, cancelled or deleted, or a run that was cancelled. Entries of the last second may be lost if the
// process is killed. Thread-safe.
class AuditLog {
 public:
  // The thread calls `also` with each write, so that the caller can write other rows that are not urgent.
  AuditLog(db::AccessStore& store, std::function<absl::Status()> also, AuditLimits limits = {});
  // Like Stop.
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  void Start();
  // Writes what is pending, once, and ends the thread.
  void Stop();
  // Adds an entry. Its time must be set, its count must be 1. Does not block. If too many rows are pending,
  // the entry is lost; the log of the process then gets the number of lost entries.
  void Add(db::AuditRow row) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until all entries that were added before are written. Returns an error if they are not within `limit`.
  absl::Status Flush(absl::Duration limit) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // The key by which refused calls are equal: user, source, address, action, result.
  using Key = std::tuple<std::string, std::string, std::string, std::string, std::string>;
  // The key by which changes are equal: user, source, address, action, target, result, detail.
  using ChangeKey =
      std::tuple<std::string, std::string, std::string, std::string, std::string, std::string, std::string>;

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Moves the rows to write into writing_. `all`: also moves refused calls of the current period.
  void Collect(bool all) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddChange(db::AuditRow row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddRefused(db::AuditRow row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WakesUp() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || flush_asked_ > flushed_; }

  db::AccessStore& store_;
  const std::function<absl::Status()> also_;
  const AuditLimits limits_;
  SteadyMutex mutex_;
  std::vector<db::AuditRow> changes_ ABSL_GUARDED_BY(mutex_);
  std::map<ChangeKey, size_t> change_at_ ABSL_GUARDED_BY(mutex_);  // indexes in changes_
  // Number of changes that were not added, and that the log of the process does not have yet.
  int64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Key, db::AuditRow> refused_ ABSL_GUARDED_BY(mutex_);
  // One row for the refused calls above the limit; its count is their number.
  db::AuditRow others_ ABSL_GUARDED_BY(mutex_);
  // Time of the steady clock at which the oldest row of refused_ or others_ was added.
  absl::Duration refused_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  // Minute of the last new row of a refused call, since the epoch.
  int64_t minute_ ABSL_GUARDED_BY(mutex_) = 0;
  int in_minute_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<db::AuditRow> writing_ ABSL_GUARDED_BY(mutex_);
  int64_t flush_asked_ ABSL_GUARDED_BY(mutex_) = 0, flushed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace scalelab::server
