#include "worker/process/tagged_processes.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace scalelab::worker {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(100);

class ProcessesHere final : public TaggedProcesses {
 public:
  ProcessesHere(EventLoop& loop, std::string tag, std::function<int(pid_t)> open)
      : loop_(loop), tag_(std::move(tag)), open_(std::move(open)) {}
  ~ProcessesHere() override;
  ProcessesHere(const ProcessesHere&) = delete;
  ProcessesHere& operator=(const ProcessesHere&) = delete;

  void End(absl::Duration grace, std::function<void()> gone) override;

 private:
  void Sweep();
  void Forget(int pidfd);

  EventLoop& loop_;
  const std::string tag_;
  const std::function<int(pid_t)> open_;
  std::function<void()> gone_;
  std::map<int, ProcessInfo> watched_;                 // by pidfd
  std::vector<ProcessInfo> asked_;                     // without a pidfd, and have got SIGTERM
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
  const std::optional<std::vector<ProcessInfo>> living = ProcessesWithEnvironment(tag_);
  bool unwatched = !living.has_value();
  for (const ProcessInfo& process : living.value_or(std::vector<ProcessInfo>())) {
    const auto is_this = [&](const ProcessInfo& other) {
      return other.pid == process.pid && other.start_time == process.start_time;
    };
    if (std::ranges::any_of(watched_, [&](const auto& entry) { return is_this(entry.second); })) continue;
    const int fd = open_(process.pid);
    if (fd < 0 && errno == ESRCH) continue;  // the process has exited in the meantime
    if (fd < 0) {
      unwatched = true;
      const bool asked = std::ranges::any_of(asked_, is_this);
      if (killing_ || !asked) Signal(process, killing_ ? SIGKILL : SIGTERM);
      if (!asked) asked_.push_back(process);
      continue;
    }
    watched_.emplace(fd, process);
    loop_.Watch(fd, [this, fd] {
      Forget(fd);
      if (watched_.empty()) Sweep();
    });
    Signal(process, killing_ ? SIGKILL : SIGTERM);
  }
  if (unwatched && sweep_timer_ == 0) {
    sweep_timer_ = loop_.After(kLookAgain, [this] {
      sweep_timer_ = 0;
      Sweep();
    });
  }
  if (unwatched || !watched_.empty()) return;
  asked_.clear();
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

std::unique_ptr<TaggedProcesses> NewTaggedProcesses(EventLoop& loop, std::string tag,
                                                    std::function<int(pid_t)> open) {
  return std::make_unique<ProcessesHere>(loop, std::move(tag), std::move(open));
}

}  // namespace scalelab::worker
