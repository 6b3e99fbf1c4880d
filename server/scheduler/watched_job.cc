#include "server/scheduler/watched_job.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {  // missing in the header of glibc 2.36
#include <sys/pidfd.h>
}

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;

// How often the lock is probed after the worker has exited. The process that supervises the worker's children
// holds the lock a little longer. There is no event for the release of the lock: inotify reports the close
// before the lock is free.
constexpr absl::Duration kDrainPeriod = absl::Milliseconds(50);

std::string DescribeExit(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return absl::StrCat("its worker exited with status ", info.si_status);
  return absl::StrCat("its worker was killed by signal ", info.si_status, " (", strsignal(info.si_status),
                      ")");
}

}  // namespace

absl::StatusOr<std::unique_ptr<WatchedJob>> WatchedJob::Start(const std::string& directory, JobRecord record,
                                                              const std::vector<std::string>& argv,
                                                              const std::vector<std::string>& environment,
                                                              const std::string& secret) {
  if (absl::Status written = WriteJobRecord(directory, record); !written.ok()) return written;
  const absl::StatusOr<pid_t> pid = StartWorker(directory, argv, environment, secret);
  if (!pid.ok()) return pid.status();
  auto job = std::make_unique<WatchedJob>(directory, std::move(record));
  job->pidfd_ = pidfd_open(*pid, 0);
  if (job->pidfd_ < 0) {
    const std::string why = std::strerror(errno);
    kill(*pid, SIGKILL);
    waitpid(*pid, nullptr, 0);
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot open a pidfd of the worker in ", directory, ": ", why));
  }
  return job;
}

WatchedJob::~WatchedJob() {
  if (pidfd_ >= 0) close(pidfd_);
}

void WatchedJob::End(State as) {
  if (end_as_ == State::kUnknown) end_as_ = as;
}

bool WatchedJob::Step(absl::Duration now, absl::Duration kill_after) {
  if (pidfd_ >= 0) Reap();
  if (pidfd_ < 0 && Drain()) return true;
  if (now >= record_.deadline) End(State::kTimeout);
  if (end_as_ == State::kUnknown || pidfd_ < 0) return false;
  if (kill_at_ == -absl::InfiniteDuration()) {
    pidfd_send_signal(pidfd_, SIGTERM, nullptr, 0);
    kill_at_ = now + kill_after;
  } else if (now >= kill_at_) {
    spdlog::warn("the worker in {} did not end after SIGTERM; sending SIGKILL", directory_);
    pidfd_send_signal(pidfd_, SIGKILL, nullptr, 0);
    kill_at_ = absl::InfiniteDuration();
  }
  return false;
}

absl::Duration WatchedJob::NextDue(absl::Duration now) const {
  const absl::Duration due = end_as_ == State::kUnknown ? record_.deadline : absl::InfiniteDuration();
  if (pidfd_ < 0) return std::min(due, now + kDrainPeriod);
  return end_as_ == State::kUnknown ? due : kill_at_;
}

// Checks whether the worker has exited.
void WatchedJob::Reap() {
  pollfd exited{pidfd_, POLLIN, 0};
  if (poll(&exited, 1, 0) <= 0) return;
  // A worker that an earlier scalelabd started is not a child of this process, so its exit
  // status stays unknown.
  siginfo_t info{};
  if (waitid(P_PIDFD, pidfd_, &info, WEXITED) == 0) exit_ = info;
  close(std::exchange(pidfd_, -1));
}

// Checks the lock after the worker has exited. Returns true when the job is over.
bool WatchedJob::Drain() {
  const absl::StatusOr<LockHolder> lock = FindLockHolder(LockOf(directory_));
  if (!lock.ok()) {
    spdlog::warn("{}", lock.status().ToString());
    return false;
  }
  if (!lock->held) {
    Conclude(*lock);
    return true;
  }
  pidfd_ = OpenWorker(directory_, lock->pid);
  if (pidfd_ >= 0) {  // found after a restart, or our worker lost the lock to an earlier one
    exit_ = {};
    kill_at_ = -absl::InfiniteDuration();
  }
  return false;
}

// Stores in the record how the job ended.
void WatchedJob::Conclude(const LockHolder& lock) {
  const bool known = exit_.si_pid != 0;
  if (end_as_ != State::kUnknown) {
    record_.state = end_as_;
    record_.reason = end_as_ == State::kTimeout ? TimeLimitReason(record_.time_limit) : "cancelled";
  } else if (!known) {
    record_.state = State::kCompleted;
    record_.reason = "its worker ended; its exit status is unknown, because an earlier scalelabd started it";
  } else if (exit_.si_code == CLD_EXITED && exit_.si_status == 0) {
    record_.state = State::kCompleted;
    record_.reason = DescribeExit(exit_);
  } else {
    record_.state = lock.pid == 0 ? State::kBootFail : State::kFailed;
    record_.reason = absl::StrCat(DescribeExit(exit_), "; see ", directory_, "/worker.log");
  }
}

}  // namespace scalelab::server
