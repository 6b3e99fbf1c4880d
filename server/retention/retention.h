// Applies the rules of retention.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "db/retention/retention.h"
#include "db/store.h"
#include "scalelab/v1/admin.pb.h"
#include "server/retention/attempt_files.h"
#include "server/retention/rules.h"

namespace scalelab::server {

struct RetentionOptions {
  RetentionRules rules;  // at the start
  std::string runs_dir;
  std::function<absl::Time()> now;  // the wall clock
  // Time until the thread applies the rules for the first time, and between two times.
  absl::Duration first = absl::Minutes(5), period = absl::Hours(1);
};

// A thread applies the rules from the constructor to Stop.
class Retention {
 public:
  // `store` must outlive this object.
  Retention(RetentionOptions options, db::Store& store);
  // Like Stop, without a limit.
  ~Retention();
  Retention(const Retention&) = delete;
  Retention& operator=(const Retention&) = delete;

  // Ends the thread. Returns false if it is still blocked in a call of the filesystem after `grace`: this object and the
  // store must then stay alive until the process ends.
  bool Stop(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mutex_);
  // Replaces the rules. The thread applies them when it does so next, within a period.
  void SetRules(const RetentionRules& rules) ABSL_LOCKS_EXCLUDED(mutex_);
  // Applies the rules now, and returns for each rule what it removed; with `dry_run` what it would remove. Points are
  // removed in short transactions, which this call makes until nothing is left or `over` returns true; the maintenance
  // thread of the database does the rest. Blocks when the filesystem of the runs blocks. Returns UNAVAILABLE if another
  // call is at work.
  absl::StatusOr<v1::PruneResponse> Prune(bool dry_run, const std::function<bool()>& over);

 private:
  // What one rule removes.
  struct Due {
    std::string rule;
    db::Removal what = db::Removal::kPoints;
    std::vector<int64_t> studies;
    db::PointsSize points;
  };

  void Run();
  RetentionRules rules() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::vector<Due>> FindDue(const RetentionRules& rules, db::Micros now);
  // Adds the rule for the size of the database, on top of those for age.
  absl::Status FindDueBySize(const RetentionRules& rules, db::Micros now, std::vector<Due>& due);
  absl::StatusOr<v1::PruneResponse::Removed> RemovePoints(const Due& due, db::Micros now, bool dry_run);
  absl::StatusOr<v1::PruneResponse::Removed> RemoveFiles(const Due& due, db::Micros now, bool dry_run,
                                                         const std::function<bool()>& over);
  absl::Status RemoveFilesOf(AttemptFiles& files, const Due& due, int64_t study, db::Micros until,
                             bool dry_run, const std::function<bool()>& over, FilesRemoved& removed);
  bool Stopping() ABSL_LOCKS_EXCLUDED(mutex_);

  const RetentionOptions options_;
  db::Store& store_;
  std::mutex at_work_;  // held during Prune
  mutable absl::Mutex mutex_;
  RetentionRules rules_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // the thread
  std::thread thread_;
};

}  // namespace scalelab::server
