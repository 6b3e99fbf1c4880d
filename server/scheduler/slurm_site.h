// The properties of a Slurm cluster: its nodes, its configuration, and whether it answers. Jobs
// are in slurm_jobs.h.
#pragma once

#include <functional>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/scheduler/scheduler.h"
#include "server/scheduler/slurm_client.h"

namespace scalelab::server {

// Methods may be called from any thread. View, Fits, Start and RecordAnswer may query Slurm, and block then.
class SlurmSite {
 public:
  struct Options {
    absl::Duration settle;            // as in SlurmSchedulerOptions
    absl::Duration view_age;          // as in SlurmSchedulerOptions
    std::function<absl::Time()> now;  // as in SlurmSchedulerOptions
  };
  SlurmSite(SlurmClient client, Options options);

  // Queries Slurm once, so that a wrong set-up is logged early.
  void Start();
  // Adds up the nodes; unknown if Slurm hides nodes. Never blocks.
  Capacity capacity() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<ClusterView> View() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls View if the last call was long ago.
  void RefreshView() ABSL_LOCKS_EXCLUDED(mutex_);
  // Checks a request against the nodes of the cluster; queries Slurm only when it would be refused. Returns OK
  // if Slurm hides nodes, or its configuration has not been read.
  absl::Status Fits(const JobRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);
  // Records whether Slurm has answered a query. After the first answer, reads the configuration.
  void RecordAnswer(const absl::Status& answer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns for how long Slurm has not answered.
  absl::Duration Silence() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the time without a job in the list after which it is gone.
  absl::Duration settle() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether the configuration has been read.
  bool known() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether there is an accounting database.
  bool accounting() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether users see only their own jobs. True until the configuration has been read.
  bool private_jobs() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const SlurmClient client_;
  const Options options_;

  mutable absl::Mutex mutex_;
  ClusterView view_ ABSL_GUARDED_BY(mutex_);
  absl::Time view_refreshed_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::optional<SlurmClient::Site> site_ ABSL_GUARDED_BY(mutex_);
  absl::Duration settle_ ABSL_GUARDED_BY(mutex_);
  absl::Time unreachable_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

// Returns the error of Scheduler::Poll after a query that failed with `error`.
absl::Status NoAnswer(const SlurmSite& site, const absl::Status& error);

}  // namespace scalelab::server
