#include "worker/process/event_loop.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/random/random.h"
#include "worker/process/steady_time.h"

namespace scalelab::worker {
namespace {

EventLoop::Sources OwnSources() {
  return {SteadyNow,
          [random = std::make_shared<absl::BitGen>()] { return absl::Uniform<uint64_t>(*random); }};
}

}  // namespace

EventLoop::EventLoop() : EventLoop(OwnSources()) {}
EventLoop::EventLoop(Sources sources)
    : sources_(std::move(sources)), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
EventLoop::~EventLoop() { close(wake_fd_); }

void EventLoop::Watch(int fd, Callback readable) { watched_[fd] = std::move(readable); }
void EventLoop::Unwatch(int fd) { watched_.erase(fd); }

EventLoop::TimerId EventLoop::After(absl::Duration delay, Callback then) {
  const TimerId id = next_timer_++;
  const absl::Duration due = Now() + std::max(delay, absl::ZeroDuration());
  timers_.emplace(std::pair(due, id), std::move(then));
  due_[id] = due;
  return id;
}

void EventLoop::Cancel(TimerId id) {
  auto it = due_.find(id);
  if (it == due_.end()) return;
  timers_.erase({it->second, id});
  due_.erase(it);
}

void EventLoop::Post(Callback call) {
  {
    absl::MutexLock lock(&mutex_);
    posted_.push_back(std::move(call));
    if (posted_.size() > 1) return;  // an earlier Post has woken the loop, which has not run since
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
}

void EventLoop::Run() {
  stopped_ = false;
  while (!stopped_) RunOnce(absl::InfiniteDuration());
}

bool EventLoop::RunUntil(const std::function<bool()>& done, absl::Duration limit) {
  const absl::Duration until = Now() + limit;
  while (!done()) {
    if (Now() >= until) return false;
    RunOnce(until);
  }
  return true;
}

void EventLoop::Step() { RunOnce(Now()); }

absl::Duration EventLoop::NextStep() const {
  std::vector<pollfd> fds = Descriptors();
  if (poll(fds.data(), fds.size(), 0) > 0) return Now();
  return timers_.empty() ? absl::InfiniteDuration() : timers_.begin()->first.first;
}

std::vector<pollfd> EventLoop::Descriptors() const {
  std::vector<pollfd> fds{{wake_fd_, POLLIN, 0}};
  for (const auto& [fd, callback] : watched_) fds.push_back({fd, POLLIN, 0});
  return fds;
}

void EventLoop::RunOnce(absl::Duration until) {
  std::vector<pollfd> fds = Descriptors();
  if (!timers_.empty()) until = std::min(until, timers_.begin()->first.first);
  const timespec timeout = absl::ToTimespec(std::clamp(until - Now(), absl::ZeroDuration(), absl::Hours(1)));
  if (ppoll(fds.data(), fds.size(), &timeout, nullptr) > 0) {
    for (const pollfd& fd : fds) {
      if (fd.revents == 0) continue;
      if (fd.fd == wake_fd_) {
        RunPosted();
      } else if (auto it = watched_.find(fd.fd); it != watched_.end()) {
        Callback callback = it->second;  // a copy, because the callback may call Unwatch
        callback();
      }
    }
  }
  RunTimers();
}

void EventLoop::RunPosted() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof count);
  std::vector<Callback> calls;
  {
    absl::MutexLock lock(&mutex_);
    calls.swap(posted_);
  }
  for (Callback& call : calls) call();
}

void EventLoop::RunTimers() {
  const absl::Duration now = Now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    due_.erase(node.key().second);
    node.mapped()();
  }
}

}  // namespace scalelab::worker
