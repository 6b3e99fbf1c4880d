// What one job of the local scheduler is outside of this process: a directory with job.json, lock and
// worker.log, and a worker. All functions are safe to call from any thread.
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

// job.json: what a job holds while it lives, and how it ended. Written before its worker is started.
struct JobRecord {
  int slots = 1;
  std::vector<std::string> gpus;  // as CUDA_VISIBLE_DEVICES names them
  absl::Time deadline = absl::InfiniteFuture();
  std::string boot_id;                                  // of the machine's boot that it was started in
  JobStatus::State state = JobStatus::State::kRunning;  // or how it ended
  std::string reason;
};

// Replaces <directory>/job.json in one step; makes the directory when absent.
absl::Status WriteJobRecord(const std::string& directory, const JobRecord& record);
// Nothing when there is no such job. An error says that this is not known. A file that a crash of the machine
// left unreadable reads as a record of defaults.
absl::StatusOr<std::optional<JobRecord>> ReadJobRecord(const std::string& directory);

// This boot of the machine; empty when the system does not tell.
std::string BootId();

// Who holds <directory>/lock. The lock is taken for an instant to see whether it is free.
struct LockView {
  bool held = false;
  pid_t pid = 0;  // as written in the file, by a worker that may be gone; 0: no worker ever took the lock
};
absl::StatusOr<LockView> LookAtLock(const std::string& directory);

// A pidfd of process `pid` if it is the worker of this job, which it is exactly when it has the lock file
// open: process ids are used again, and no stranger may ever be signalled. -1 otherwise.
int OpenWorker(const std::string& directory, pid_t pid);

// Starts `argv` as leader of a session of its own with nothing of this process but `environment`; its output
// is appended to <directory>/worker.log. posix_spawn, because a process with gRPC threads must not fork.
absl::StatusOr<pid_t> StartWorker(const std::string& directory, const std::vector<std::string>& argv,
                                  const std::vector<std::string>& environment);

}  // namespace scalelab::server
