// Calls Slurm's command-line programs, one method for each program. Keeps no state and makes no decisions.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/command/command_runner.h"
#include "server/scheduler/scheduler.h"
#include "server/scheduler/slurm_errors.h"
#include "server/scheduler/slurm_queue.h"

namespace scalelab::server {

// Calls Slurm's programs for the jobs of one user. Safe to call from any thread. Each method blocks until the
// program has ended or `timeout` has passed. Errors are UNAVAILABLE and contain Slurm's message; after an
// error the state of every job is unknown.
class SlurmClient {
 public:
  // `query` runs squeue, sacct, sinfo and scontrol; `act` runs sbatch and scancel, under the account of `user`. Both must
  // outlive the client.
  SlurmClient(CommandRunner& query, CommandRunner& act, uid_t user, absl::Duration timeout);

  // Returns this user's jobs, including ended jobs that squeue still lists. If `name` is not empty, returns
  // only jobs with this name.
  absl::StatusOr<Queue> Jobs(const std::string& name = "") const;
  // Returns the jobs of several users that have one of these names, by user, with one query for 1000 names.
  // Other jobs are not queried: the later lines of a name with line breaks could look like jobs of other
  // users.
  absl::StatusOr<std::map<uid_t, Queue>> JobsOf(const std::vector<uid_t>& users,
                                                const std::vector<std::string>& names) const;
  // Returns jobs from the accounting database, also those that squeue does not list any more.
  absl::StatusOr<Queue> Accounted(const std::vector<std::string>& names) const;
  absl::StatusOr<ClusterView> View() const;
  // The id of the submitted job, or the reason why there is none.
  struct Submitted {
    std::string id;  // empty: refused
    Refusal refusal;
  };
  // `directory`: the directory of the job.
  Submitted Submit(const JobRequest& request, const std::string& script, const std::string& directory) const;
  // Cancels this user's jobs called `name`, or the one with `id`. Returns OK also if there is none.
  absl::Status Cancel(const std::string& name, const std::string& id = "") const;
  // Cancels this user's jobs with these ids with one command. Returns OK also if there are none. The
  // ids must come from a query immediately before this call, because Slurm may reuse ids after a crash
  // of the controller.
  absl::Status CancelIds(const std::vector<std::string>& ids) const;
  // Properties of the cluster that are fixed while its controller runs.
  struct Site {
    std::string cluster, version;
    bool accounting = false;    // sacct works: there is an accounting database
    bool private_jobs = false;  // squeue shows users only their own jobs
    // sinfo leaves out cloud nodes that are powered down, so it may show fewer nodes than jobs can get
    bool hides_nodes = false;
    absl::Duration message_timeout = absl::Seconds(10);
  };
  absl::StatusOr<Site> ReadSite() const;

 private:
  // Lists `users` and `names`, which are separated by commas. Without `names`, returns jobs with any name.
  absl::StatusOr<std::string> Squeue(const std::string& users, const std::string& names) const;
  absl::Status RunScancel(const std::vector<std::string>& argv) const;
  // Returns the standard output of a program.
  absl::StatusOr<std::string> Output(const std::vector<std::string>& argv) const;

  CommandRunner& query_;
  CommandRunner& act_;
  const uid_t uid_;
  const std::string user_;  // the uid: a name can have several spellings
  const absl::Duration timeout_;
};

// The environment variable of a job that contains the allocation's secret. The worker reads it.
inline constexpr absl::string_view kSecretVariable = "SCALELAB_ALLOCATION_SECRET";

}  // namespace scalelab::server
