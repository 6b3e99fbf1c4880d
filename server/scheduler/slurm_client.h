// What Slurm is asked and told, one method a program. No memory, no decisions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/scheduler/scheduler.h"
#include "server/scheduler/slurm_errors.h"
#include "server/scheduler/slurm_queue.h"

namespace scalelab::server {

// Any number of threads. Each method blocks until the program has ended or `deadline` has passed. Errors are
// UNAVAILABLE, in Slurm's words, and say nothing about any job.
class SlurmClient {
 public:
  explicit SlurmClient(absl::Duration deadline);

  // Own jobs, those that ended and are still remembered too; of one name, or of all (empty).
  absl::StatusOr<Queue> Jobs(const std::string& name = "") const;
  // Ended and forgotten jobs, from the accounting database.
  absl::StatusOr<Queue> Accounted(const std::vector<std::string>& names) const;
  absl::StatusOr<ClusterView> View() const;
  // The job's id, or what it means that there is none.
  struct Submitted {
    std::string id;  // empty: refused
    Refusal refusal;
  };
  Submitted Submit(const JobRequest& request, const std::string& script) const;
  // Own jobs of this name; one of them only when `id` is given. OK also when there is none.
  absl::Status Cancel(const std::string& name, const std::string& id = "") const;
  // What is fixed as long as the controller runs.
  struct Site {
    std::string cluster, version;
    bool accounting = false;  // a database that sacct can ask
    absl::Duration message_timeout = absl::Seconds(10);
  };
  absl::StatusOr<Site> AskSite() const;

 private:
  absl::StatusOr<std::string> Ask(const std::vector<std::string>& argv) const;

  const absl::Duration deadline_;
  const std::string user_;  // own uid: names can be spelt in several ways
  const std::vector<std::string> environment_;
};

// Where the environment of a job has the secret; the worker's options name it.
inline constexpr absl::string_view kSecretVariable = "SCALELAB_ALLOCATION_SECRET";

}  // namespace scalelab::server
