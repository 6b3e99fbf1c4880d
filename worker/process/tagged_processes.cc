#include "worker/process/tagged_processes.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "worker/process/steady_time.h"

namespace scalelab::worker {

TaggedProcesses::TaggedProcesses(EventLoop& loop, std::string tag) : loop_(loop), tag_(std::move(tag)) {}

TaggedProcesses::~TaggedProcesses() {
  loop_.Cancel(kill_timer_);
  loop_.Cancel(sweep_timer_);
  while (!watched_.empty()) Forget(watched_.begin()->first);
}

void TaggedProcesses::End(absl::Duration grace, std::function<void()> gone) {
  gone_ = std::move(gone);
  const absl::Duration kill_at = SteadyNow() + grace;
  if (!killing_ && kill_at < kill_at_) {
    kill_at_ = kill_at;
    loop_.Cancel(kill_timer_);
    kill_timer_ = loop_.After(grace, [this] {
      kill_timer_ = 0;
      killing_ = true;
      for (const auto& [fd, process] : watched_) Signal(process, SIGKILL);
    });
  }
  if (sweep_timer_ == 0) {
    sweep_timer_ = loop_.After(absl::ZeroDuration(), [this] {
      sweep_timer_ = 0;
      Sweep();
    });
  }
}

// Each sweep finds the processes that were forked since the previous one; when a sweep finds none,
// none is left.
void TaggedProcesses::Sweep() {
  for (const ProcessInfo& process : ProcessesWithEnvironment(tag_)) {
    const bool known = std::any_of(watched_.begin(), watched_.end(), [&](const auto& entry) {
      return entry.second.pid == process.pid && entry.second.start_time == process.start_time;
    });
    if (known) continue;
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
    if (fd < 0) continue;  // it has exited in the meantime
    watched_.emplace(fd, process);
    loop_.Watch(fd, [this, fd] {
      Forget(fd);
      if (watched_.empty()) Sweep();
    });
    Signal(process, killing_ ? SIGKILL : SIGTERM);
  }
  if (!watched_.empty()) return;
  loop_.Cancel(kill_timer_);
  kill_timer_ = 0;
  kill_at_ = absl::InfiniteDuration();
  killing_ = false;
  if (gone_) std::exchange(gone_, nullptr)();  // may destroy this object
}

void TaggedProcesses::Forget(int pidfd) {
  loop_.Unwatch(pidfd);
  watched_.erase(pidfd);
  close(pidfd);
}

}  // namespace scalelab::worker
