// The jobs of one user in Slurm. slurm_scheduler.h describes how they are identified and found again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/scheduler/file_lane.h"
#include "server/scheduler/scheduler.h"
#include "server/scheduler/slurm_client.h"
#include "server/scheduler/slurm_script.h"
#include "server/scheduler/slurm_site.h"

namespace scalelab::server {

// Used by one thread at a time.
class SlurmJobs {
 public:
  struct Options {
    SlurmScriptOptions script;
    // Whether this process writes the script into the job's directory and may read this directory. Otherwise
    // the program that runs sbatch writes the script.
    bool files_are_here = true;
    // Returns an error if no job can be submitted at present. If it is not set, jobs can always be submitted.
    std::function<absl::Status()> ready;
    std::function<absl::Time()> now;                 // as in SlurmSchedulerOptions
    std::function<absl::Time()> wall = absl::Now;    // as in SlurmSchedulerOptions
    absl::Duration file_timeout = absl::Seconds(5);  // as in SlurmSchedulerOptions
  };
  // `site` must outlive this object.
  SlurmJobs(SlurmClient client, SlurmSite& site, Options options);

  // As Scheduler::Submit.
  absl::StatusOr<std::string> Submit(const JobRequest& request);
  // Returns the status of each token in an answer of squeue that has just arrived.
  std::vector<JobStatus> Statuses(const std::vector<std::string>& tokens, const Queue& queue);
  // Records that squeue has not answered. Earlier answers that did not list a job then no longer count,
  // because a restarted controller may load an older state.
  void QueryFailed();
  // As Scheduler::Cancel.
  absl::Status Cancel(const std::vector<std::string>& tokens);

  const SlurmClient& client() const { return slurm_; }

 private:
  // The state of one token in this process.
  struct TrackedJob {
    // Slurm may have a job of this name although it does not list it.
    bool may_exist = true;
    std::string doubt;                                  // the reason why it may exist
    std::optional<JobStatus> last;                      // status in the last answer that listed it
    absl::Time missing_since = absl::InfiniteFuture();  // first answer without it; reset when a query fails
    absl::Time asked;                                   // last call for this token
    absl::Time cancelled = absl::InfiniteFuture();      // wall-clock time of the first Cancel()
    bool seen_alive = false;                            // by this process
  };

  static Canceller CancellerOf(const TrackedJob& job, const QueueRow& row);
  JobStatus Listed(const std::string& token, const std::vector<QueueRow>& rows, TrackedJob& job);
  void CancelDuplicates(const std::vector<QueueRow>& rows, const QueueRow& kept);
  bool CertainlyGone(TrackedJob& job);
  JobStatus Uncertain(const std::string& token, const TrackedJob& job, const std::string& why) const;
  void ReadAccounting(std::map<std::string, JobStatus*>& gone);
  absl::Status WriteScript(const JobRequest& request, const std::string& script);
  bool IsMissing(const std::string& file);

  const SlurmClient slurm_;
  SlurmSite& site_;
  const Options options_;
  const std::unique_ptr<FileLane> files_;  // null if the files are not here
  std::map<std::string, TrackedJob> jobs_;
};

}  // namespace scalelab::server
