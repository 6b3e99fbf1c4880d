// The interface between the coordinator and a scheduler that allocates nodes.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace scalelab::server {

// A job to submit. Its token is the name of the job, by which it is found again after a crash.
struct JobRequest {
  std::string token;   // UUID
  std::string secret;  // authenticates its workers; passed only in the environment of the job
  std::string study;   // display name, shown to users of the scheduler
  std::string user;    // owner of the study; the job runs under this account if the scheduler can do that
  int nodes = 1;
  int ranks_per_node = 1;
  int cpus_per_rank = 1;
  int gpus_per_rank = 0;
  absl::Duration time_limit = absl::Hours(1);
  std::string partition;  // empty: the site's default
  bool exclusive = false;
  long memory_mib = 0;
  std::vector<std::string> excluded_nodes;  // nodes that the job must not use
  std::vector<std::pair<std::string, std::string>>
      options;  // passed on unchanged: account, qos, constraint, ...
};

// The state of one job.
struct JobStatus {
  enum class State {
    kUnknown,  // the scheduler certainly never had the job, or has forgotten it
    kPending,
    kRunning,
    kCompleted,  // its workers exited by themselves
    kFailed,
    kCancelled,
    kTimeout,
    kPreempted,
    kNodeFail,
    kOutOfMemory,
    kBootFail,
    kDeadline
  };
  std::string token;
  std::string external_id;
  State state = State::kUnknown;
  std::string reason;      // one sentence: why it is pending, or how it ended
  bool suspended = false;  // running, but its processes are stopped
  bool ending = false;     // running but about to end: accepts no work; its final state follows
  absl::Time ends_at = absl::InfiniteFuture();  // running: when its time limit ends it, if known
  bool from_outside = false;  // cancelled, and certainly not by Cancel(), even if Cancel() was called
};

bool IsOver(JobStatus::State state);

// Returns why a job ended at its time limit, and what the user can change: one sentence for JobStatus::reason.
// InfiniteDuration: the limit is not known.
std::string TimeLimitReason(absl::Duration limit);

// Returns how long before its time limit the workers of a job get SIGTERM, so that they can shut down: a
// minute, less for short limits.
inline absl::Duration WarningBeforeEnd(absl::Duration time_limit) {
  return std::clamp(time_limit / 10, absl::Seconds(5), absl::Seconds(60));
}

// The largest request that a study may make. 0: unknown.
struct Capacity {
  int slots = 0;  // single-core ranks over all nodes
  int slots_per_node = 0;
  int gpus = 0;
};

// The partitions and nodes of the scheduler, for display.
struct ClusterView {
  struct Partition {
    std::string name;
    bool is_default = false;
    std::string state;  // as the scheduler spells it, for example "UP"
    absl::Duration max_time = absl::InfiniteDuration();
    int nodes = 0;
    int idle_nodes = 0;
  };
  struct Node {
    std::string name;
    std::vector<std::string> partitions;
    std::string state;   // as the scheduler spells it, for example "IDLE"
    std::string reason;  // why it is not available; empty otherwise
    int cpus = 0;
    int cpus_allocated = 0;
    long memory_mib = 0;
    int gpus = 0;
    int gpus_allocated = 0;  // 0 also when unknown
    bool responds = true;    // whether the scheduler reaches it; false: it gets no jobs, whatever its state
  };
  std::vector<Partition> partitions;  // sorted by name
  std::vector<Node> nodes;            // sorted by name
};

// A source of jobs. Methods may block for seconds, are called from one thread and are idempotent.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  virtual std::string name() const = 0;  // "local", "slurm"
  virtual Capacity capacity() const = 0;
  // Submits a job, or finds the job that already has this token, and returns the job's external id. Returns
  // UNKNOWN if the submission failed in a way that does not show whether the job was accepted; Poll then shows
  // it. Returns UNAVAILABLE if the job was not submitted, because the scheduler or the agent of the user does not
  // answer, or because an earlier submission may still have been accepted; RESOURCE_EXHAUSTED if a limit or quota
  // is reached. Retry later after these errors. Returns INVALID_ARGUMENT or PERMISSION_DENIED if the job will never
  // be accepted.
  virtual absl::StatusOr<std::string> Submit(const JobRequest& request) = 0;
  // Returns the script that Submit would submit; empty when the scheduler uses none.
  virtual std::string Script(const JobRequest& request) const = 0;
  // Returns one status for each token, in order, with one query. Leaves out jobs whose state is unknown now, because
  // the agent of their user does not answer. After an error the state of every job is unknown.
  virtual absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>& tokens) = 0;
  // Returns the partitions and nodes, for display. Costs one more query, so call it rarely.
  virtual absl::StatusOr<ClusterView> View() = 0;
  // Ends jobs, with few queries for many of them. Returns OK also if a job does not exist any more. After an error
  // any of them may still exist.
  virtual absl::Status Cancel(const std::vector<std::string>& tokens) = 0;
};

}  // namespace scalelab::server
