#include "worker/process/tagged_processes.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "worker/process/process_tree.h"

namespace scalelab::worker {
namespace {

class ProcessesHere final : public TaggedProcesses {
 public:
  ProcessesHere(EventLoop& loop, std::string tag) : loop_(loop), tag_(std::move(tag)) {}
  ~ProcessesHere() override;
  ProcessesHere(const ProcessesHere&) = delete;
  ProcessesHere& operator=(const ProcessesHere&) = delete;

  void End(absl::Duration grace, std::function<void()> gone) override;

 private:
  void Sweep();
  void Forget(int pidfd);

  EventLoop& loop_;
  const std::string tag_;
  std::function<void()> gone_;
  std::map<int, ProcessInfo> watched_;                 // by pidfd
  absl::Duration kill_at_ = absl::InfiniteDuration();  // EventLoop::Now
  bool killing_ = false;
  EventLoop::TimerId kill_timer_ = 0, sweep_timer_ = 0;
};

ProcessesHere::~ProcessesHere() {
  loop_.Cancel(kill_timer_);
  loop_.Cancel(sweep_timer_);
  while (!watched_.empty()) Forget(watched_.begin()->first);
}

void ProcessesHere::End(absl::Duration grace, std::function<void()> gone) {
  gone_ = std::move(gone);
  const absl::Duration kill_at = loop_.Now() + grace;
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
void ProcessesHere::Sweep() {
  for (const ProcessInfo& process : ProcessesWithEnvironment(tag_)) {
    const bool known = std::any_of(watched_.begin(), watched_.end(), [&](const auto& entry) {
      return entry.second.pid == process.pid && entry.second.start_time == process.start_time;
    });
    if (known) continue;
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
    if (fd < 0) continue;  // the process has exited in the meantime
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

void ProcessesHere::Forget(int pidfd) {
  loop_.Unwatch(pidfd);
  watched_.erase(pidfd);
  close(pidfd);
}

}  // namespace

std::unique_ptr<TaggedProcesses> NewTaggedProcesses(EventLoop& loop, std::string tag) {
  return std::make_unique<ProcessesHere>(loop, std::move(tag));
}

}  // namespace scalelab::worker
