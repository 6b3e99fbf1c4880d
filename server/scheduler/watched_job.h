// A job of the local scheduler from the start of its worker, or its rediscovery after a restart, to its
// end. Not thread-safe.
//
//   started --> running --worker exits--> draining --lock is free--> over
//                  ^                        |  ^
//                  +--a worker has the lock-+  +--found after a restart
#pragma once

#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "files/lock_file.h"
#include "server/scheduler/local_job.h"

namespace scalelab::server {

class WatchedJob {
 public:
  // Writes job.json, then starts the worker `argv`. The other parameters are those of StartWorker.
  static absl::StatusOr<std::unique_ptr<WatchedJob>> Start(const std::string& directory, JobRecord record,
                                                           const std::vector<std::string>& argv,
                                                           const std::vector<std::string>& environment,
                                                           const std::string& secret);
  // Watches a job that already runs: a process holds its lock.
  WatchedJob(std::string directory, JobRecord record)
      : directory_(std::move(directory)), record_(std::move(record)) {}
  ~WatchedJob();  // stops watching; the worker keeps running

  WatchedJob(const WatchedJob&) = delete;
  WatchedJob& operator=(const WatchedJob&) = delete;

  const JobRecord& record() const { return record_; }
  const std::string& directory() const { return directory_; }
  // A descriptor that is readable when the worker has exited; -1: none.
  int pidfd() const { return pidfd_; }

  // Ends the job as kCancelled or kTimeout: Step sends SIGTERM, and SIGKILL `kill_after` later. Only the
  // first call has an effect.
  void End(JobStatus::State as);
  // Checks the worker, the lock and the time limit, and sends due signals. Returns true when the job is over;
  // record() then contains how it ended. All times are those of Clock::Steady.
  bool Step(absl::Duration now, absl::Duration kill_after);
  // Returns when Step must be called even if pidfd() is not readable.
  absl::Duration NextDue(absl::Duration now) const;

 private:
  void Reap();
  bool Drain();
  void Conclude(const LockHolder& lock);

  const std::string directory_;
  JobRecord record_;
  int pidfd_ = -1;
  siginfo_t exit_{};  // how the worker ended; si_pid is 0 while unknown
  JobStatus::State end_as_ = JobStatus::State::kUnknown;
  absl::Duration kill_at_ = -absl::InfiniteDuration();  // when SIGKILL is sent; not set before SIGTERM
};

}  // namespace scalelab::server
