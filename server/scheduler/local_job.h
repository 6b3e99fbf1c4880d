// The state of one local job outside this process: a worker, and a directory with job.json, lock and
// worker.log. All functions are safe to call from any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

// The contents of job.json: the resources of a running job, and how it ended. Written before
// its worker starts.
struct JobRecord {
  int slots = 1;
  std::vector<std::string> gpus;  // in the spelling of CUDA_VISIBLE_DEVICES
  absl::Duration time_limit = absl::InfiniteDuration();
  absl::Duration deadline = absl::InfiniteDuration();   // end of the time limit, a time of Clock::Steady
  std::string boot_id;                                  // the machine's boot in which the job started
  JobStatus::State state = JobStatus::State::kRunning;  // or how it ended
  std::string reason;
};

// Replaces <directory>/job.json atomically; creates the directory when absent.
absl::Status WriteJobRecord(const std::string& directory, const JobRecord& record);
// Returns nothing when there is no such job. After an error, whether the job exists is unknown. A file that a
// crash of the machine left unreadable yields a record of defaults.
absl::StatusOr<std::optional<JobRecord>> ReadJobRecord(const std::string& directory);

// Returns the id of the machine's current boot; empty when the system provides none.
std::string BootId();

// Returns the path of the worker's lock file. If FindLockHolder returns no process id for it, no worker ever
// took the lock.
std::string LockOf(const std::string& directory);

// Returns a pidfd of process `pid` if the lock file of this job is an argument of that process, otherwise -1. The
// check prevents signals to an unrelated process, because process ids are reused.
int OpenWorker(const std::string& directory, pid_t pid);

// Starts `argv` as the leader of a new session, with `environment` as its whole environment and the line `secret` on its
// standard input. Appends its output to <directory>/worker.log.
absl::StatusOr<pid_t> StartWorker(const std::string& directory, const std::vector<std::string>& argv,
                                  const std::vector<std::string>& environment, const std::string& secret);

}  // namespace scalelab::server
