#include "server/time/timers.h"

#include <algorithm>

#include "server/time/clock.h"

namespace scalelab::server {
namespace {

// The longest wait of the thread without a function. The C++ library cannot wait for an arbitrarily long time.
constexpr absl::Duration kLongestWait = absl::Hours(1);

}  // namespace

Timers::Timer& Timers::Timer::operator=(Timer&& other) noexcept {
  if (this == &other) return *this;
  Cancel();
  timers_ = std::exchange(other.timers_, nullptr);
  key_ = other.key_;
  return *this;
}

void Timers::Timer::Cancel() {
  if (Timers* timers = std::exchange(timers_, nullptr); timers != nullptr) timers->Drop(key_);
}

Timers::Timers() : thread_([this] { Run(); }) {}

Timers::Timer Timers::Call(absl::Duration delay, Function function) {
  const absl::Duration due = Clock::System().Steady() + delay;
  SteadyMutexLock lock(&mutex_);
  if (stopping_) return Timer();
  const Key key(due, ++added_);
  functions_.emplace(key, std::move(function));
  if (due < wakes_at_) mutex_.Signal();
  return Timer(this, key);
}

void Timers::Stop() {
  Functions dropped;  // destroyed without the lock, because functions may own timers
  {
    SteadyMutexLock lock(&mutex_);
    stopping_ = true;
    dropped.swap(functions_);
    mutex_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

void Timers::Run() {
  Function function;
  while (Take(&function)) {
    function();
    function = nullptr;  // what it owns must not live until the next function is due
  }
}

bool Timers::Take(Function* function) {
  SteadyMutexLock lock(&mutex_);
  while (!stopping_) {
    const absl::Duration now = Clock::System().Steady();
    const auto first = functions_.begin();
    if (first != functions_.end() && first->first.first <= now) {
      *function = std::move(first->second);
      functions_.erase(first);
      return true;
    }
    wakes_at_ = now + kLongestWait;
    if (first != functions_.end()) wakes_at_ = std::min(wakes_at_, first->first.first);
    mutex_.WaitFor(wakes_at_ - now);
  }
  return false;
}

void Timers::Drop(const Key& key) {
  Functions::node_type dropped;  // destroyed after the lock, because functions may own timers
  SteadyMutexLock lock(&mutex_);
  dropped = functions_.extract(key);
}

}  // namespace scalelab::server
