// The seam between the coordinator and whatever gives out nodes.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace scalelab::server {

// One job to ask for. Its token is the job's name: with it a job can be found again after a crash.
struct JobRequest {
  std::string token;   // UUID
  std::string secret;  // what its workers present; reaches them in the job's environment only
  std::string study;   // display name, for people who look at the scheduler
  int nodes = 1;
  int ranks_per_node = 1;
  int cpus_per_rank = 1;
  int gpus_per_rank = 0;
  absl::Duration time_limit = absl::Hours(1);
  std::string partition;  // empty: the site's default
  bool exclusive = false;
  long memory_mib = 0;
  std::vector<std::pair<std::string, std::string>>
      options;  // options that pass through: account, qos, constraint, ...
};

// What the scheduler says of one job.
struct JobStatus {
  enum class State {
    kUnknown,  // asked for it, and it is certain that the scheduler never had it or has forgotten it
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
  std::string reason;   // in words: why it is pending, how it ended
  bool ending = false;  // running, and on its way out: no work for it; its final state will follow
  absl::Time ends_at = absl::InfiniteFuture();  // running: when its time limit ends it, if that is known
  bool from_outside = false;  // cancelled, and certainly not by Cancel(), whether or not that was called
};

bool IsOver(JobStatus::State state);

// How long before its time limit a job's workers get SIGTERM, so that they can end in order: a minute, less
// for short limits.
inline absl::Duration WarningBeforeEnd(absl::Duration time_limit) {
  return std::clamp(time_limit / 10, absl::Seconds(5), absl::Seconds(60));
}

// What a study could ask for at most. 0 = the scheduler does not say.
struct Capacity {
  int slots = 0;  // single-core ranks over all nodes
  int slots_per_node = 0;
  int gpus = 0;
};

// What the scheduler has, for people.
struct ClusterView {
  struct Partition {
    std::string name;
    bool is_default = false;
    std::string state;  // the scheduler's word, for example "UP"
    absl::Duration max_time = absl::InfiniteDuration();
    int nodes = 0;
    int idle_nodes = 0;
  };
  struct Node {
    std::string name;
    std::vector<std::string> partitions;
    std::string state;   // the scheduler's word, for example "IDLE"
    std::string reason;  // why it is not available; empty otherwise
    int cpus = 0;
    int cpus_allocated = 0;
    long memory_mib = 0;
    int gpus = 0;
    int gpus_allocated = 0;  // 0 also when the scheduler does not say
  };
  std::vector<Partition> partitions;  // by name
  std::vector<Node> nodes;            // by name
};

// Methods may block (seconds), are called from one thread, and are all safe to repeat.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  virtual std::string name() const = 0;  // "local", "slurm"
  virtual Capacity capacity() const = 0;
  // Asks for a job, or finds the one that already has this token; returns its external id. UNAVAILABLE: not
  // known whether it was taken, ask Poll; RESOURCE_EXHAUSTED: a limit or quota, wait and try again;
  // INVALID_ARGUMENT and PERMISSION_DENIED: it will never be taken.
  virtual absl::StatusOr<std::string> Submit(const JobRequest& request) = 0;
  // The script Submit would hand over; empty when there is none.
  virtual std::string Script(const JobRequest& request) const = 0;
  // One answer for each token, in one query. An error says nothing about any job.
  virtual absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>& tokens) = 0;
  // For people only, and not asked often: one more question to the scheduler.
  virtual absl::StatusOr<ClusterView> View() = 0;
  // Ends a job. OK also when it is not there any more.
  virtual absl::Status Cancel(const std::string& token) = 0;
};

}  // namespace scalelab::server
