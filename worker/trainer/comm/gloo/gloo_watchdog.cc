#include "worker/trainer/comm/gloo/gloo_watchdog.h"

#include <algorithm>

namespace scalelab::trainer {
namespace {

// The interval between checks of the deadlines.
constexpr std::chrono::milliseconds kGlooCheck{100};

}  // namespace

// A caller may wait for a message after its deadline, although the message has arrived in time. The later
// deadline gives Gloo the time to report that.
GlooWatchdog::Monitored::Monitored(GlooWatchdog& watchdog, const Operation& operation,
                                   const std::vector<int>& members)
    : watchdog_(watchdog),
      operation_(operation),
      members_(members),
      deadline_(std::max(operation.deadline, watchdog.watch_.Now() + kGlooCheck)) {
  std::lock_guard lock(watchdog.mutex_);
  place_ = watchdog.monitored_.insert(watchdog.monitored_.end(), this);
}

GlooWatchdog::Monitored::~Monitored() {
  std::lock_guard lock(watchdog_.mutex_);
  watchdog_.monitored_.erase(place_);
}

GlooWatchdog::GlooWatchdog(PeerWatch& watch, std::chrono::milliseconds timeout)
    : watch_(watch), timeout_(timeout), thread_(&GlooWatchdog::Run, this) {}

GlooWatchdog::~GlooWatchdog() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void GlooWatchdog::Run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kGlooCheck, [&] { return closing_; })) {
    const RunningClock::time_point now = watch_.Now();
    const auto late = std::ranges::find_if(monitored_, [&](const auto* m) { return now >= m->deadline_; });
    if (late == monitored_.end()) continue;
    const Operation& operation = (*late)->operation_;
    const std::string symptom = LateSentence(operation, timeout_);
    const int peer = operation.peer;
    const std::vector<int> members = (*late)->members_;
    lock.unlock();  // the operation may end now
    watch_.Investigate(symptom, peer, members);
    return;  // no later operation can start
  }
}

}  // namespace scalelab::trainer
