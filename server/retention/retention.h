// Applies the rules of retention.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "db/retention/retention.h"
#include "db/store.h"
#include "scalelab/v1/admin.pb.h"
#include "server/retention/rules.h"
#include "server/retention/run_files.h"
#include "server/time/steady_mutex.h"
#include "server/time/stop_signal.h"

namespace scalelab::server {

struct RetentionOptions {
  RetentionRules rules;  // initial rules
  std::string runs_dir;
  std::function<absl::Time()> now;  // the wall clock
  // Time until the thread first applies the rules, and time between later applications.
  absl::Duration first = absl::Minutes(5), period = absl::Hours(1);
  // The agents of users, which remove the files of jobs that ran under the users' accounts. Null: there are none.
  AgentHub* agents = nullptr;
};

// Runs a thread that applies the rules periodically, from the constructor to Stop.
class Retention {
 public:
  // `store` and `options.agents` must outlive this object.
  Retention(RetentionOptions options, db::Store& store);
  // Calls Stop with an infinite grace.
  ~Retention();
  Retention(const Retention&) = delete;
  Retention& operator=(const Retention&) = delete;

  // Ends the thread. Returns false if the thread is still blocked in a filesystem call after `grace`; then
  // this object and the store must exist until the process ends.
  bool Stop(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mutex_);
  // Replaces the rules. The thread applies the new rules within one period.
  void SetRules(const RetentionRules& rules) ABSL_LOCKS_EXCLUDED(mutex_);
  // Applies the rules now. Returns for each rule what it removed, or with `dry_run` what it would remove.
  // Removes points in short transactions until nothing is left or `over` returns true; the maintenance thread
  // of the database removes the rest. When `over` returns true before all files are measured, nothing is removed by the
  // rules for their sizes; the next call continues to measure. Blocks while the filesystem of the runs blocks. Returns
  // UNAVAILABLE while another call is in progress.
  absl::StatusOr<v1::PruneResponse> Prune(bool dry_run, const std::function<bool()>& over);

 private:
  // The data that one rule removes.
  struct Due {
    std::string rule;
    db::Removal what = db::Removal::kPoints;
    std::vector<int64_t> studies;
    db::PointsSize points;
    bool continues = true;  // whether it also continues removals of `what` that were interrupted
  };
  // The bytes of the files of a study that a rule would remove, and when they were measured.
  struct FilesSize {
    int64_t bytes = 0;
    absl::Time at = absl::InfinitePast();
  };

  void Run();
  absl::StatusOr<v1::PruneResponse> PruneAlone(bool dry_run, const std::function<bool()>& over)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(at_work_);
  RetentionRules rules() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::vector<Due>> FindDue(const RetentionRules& rules, db::Micros now);
  // Adds the rule for the size of the database. `due` has the rules for ages, whose points count as removed.
  absl::Status FindDueBySize(const RetentionRules& rules, db::Micros now, std::vector<Due>& due);
  // Applies the rules for the sizes of files, and removes the directories of deleted studies. `due` has the
  // other rules, which were applied before.
  absl::Status PruneFiles(const RetentionRules& rules, db::Micros now, bool dry_run,
                          const std::function<bool()>& over, std::vector<Due> due,
                          v1::PruneResponse& response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(at_work_);
  // Returns the rule for the size of the logs or the directories. Measures the files, for which it reads their
  // directories. `due` has the rules before it, whose files count as removed.
  absl::StatusOr<Due> FindDueByFiles(db::Removal what, int64_t limit, db::Micros now,
                                     const std::vector<Due>& due, const std::function<bool()>& over)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(at_work_);
  // Returns the sum of the bytes of the files of these studies, and measures those that were not measured within
  // `max_age`. Returns nothing if `over` returned true first.
  absl::StatusOr<std::optional<int64_t>> MeasureFiles(db::Removal what, const std::vector<int64_t>& studies,
                                                      db::Micros now, absl::Duration max_age,
                                                      const std::function<bool()>& over)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(at_work_);
  absl::StatusOr<v1::PruneResponse::Removed> RemovePoints(const Due& due, db::Micros now, bool dry_run);
  absl::StatusOr<v1::PruneResponse::Removed> RemoveFiles(const Due& due, db::Micros now, bool dry_run,
                                                         const std::function<bool()>& over);
  absl::Status RemoveFilesOf(RunFiles& files, db::Removal removal, int64_t study, db::Micros until,
                             bool dry_run, const std::function<bool()>& over, FilesRemoved& removed);
  // Removes the directories of studies whose rows are deleted and whose files were not changed for `age`.
  absl::StatusOr<v1::PruneResponse::Removed> RemoveDeletedStudies(absl::Duration age, db::Micros now,
                                                                  bool dry_run,
                                                                  const std::function<bool()>& over);

  const RetentionOptions options_;
  db::Store& store_;
  absl::Mutex at_work_;                                                                   // held during Prune
  std::map<std::pair<db::Removal, int64_t>, FilesSize> sizes_ ABSL_GUARDED_BY(at_work_);  // by study id
  mutable SteadyMutex mutex_;
  RetentionRules rules_ ABSL_GUARDED_BY(mutex_);
  StopSignal stop_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // whether the thread has ended
  std::thread thread_;
};

}  // namespace scalelab::server
