// One job of the local scheduler from the start of its worker, or its rediscovery, to its end. Not
// thread-safe.
//
//   started --> worker lives (pidfd) --exits--> draining (lock decides) --lock free--> over
//                       ^                          ^  |
//                       +---lock held by another---+--+        found again after a restart: begins as
//                       draining
#pragma once

#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/scheduler/local_job.h"

namespace scalelab::server {

class WatchedJob {
 public:
  // Writes job.json, then starts the worker.
  static absl::StatusOr<std::unique_ptr<WatchedJob>> Start(const std::string& directory, JobRecord record,
                                                           const std::vector<std::string>& argv,
                                                           const std::vector<std::string>& environment);
  // A job that somebody holds the lock of.
  WatchedJob(std::string directory, JobRecord record)
      : directory_(std::move(directory)), record_(std::move(record)) {}
  ~WatchedJob();  // stops watching; the worker goes on

  WatchedJob(const WatchedJob&) = delete;
  WatchedJob& operator=(const WatchedJob&) = delete;

  const JobRecord& record() const { return record_; }
  const std::string& directory() const { return directory_; }
  // Readable when the worker has exited; -1 when there is nothing to wait for.
  int pidfd() const { return pidfd_; }

  // The job is to end: SIGTERM, and SIGKILL `kill_after` later. The first wish counts: kCancelled or
  // kTimeout.
  void End(JobStatus::State as);
  // Looks at worker, lock and time limit, and does what is due. True when the job is over: record() says how.
  bool Step(absl::Time now, absl::Duration kill_after);
  // When Step is due although pidfd() stays quiet.
  absl::Time NextDue(absl::Time now) const;

 private:
  void Reap();
  bool Drain();
  void Conclude(const LockView& lock);

  const std::string directory_;
  JobRecord record_;
  int pidfd_ = -1;
  siginfo_t exit_{};  // how a worker of ours ended; si_pid is 0 while that is not known
  JobStatus::State end_as_ = JobStatus::State::kUnknown;
  absl::Time kill_at_ = absl::InfinitePast();  // before SIGTERM is sent
};

}  // namespace scalelab::server
