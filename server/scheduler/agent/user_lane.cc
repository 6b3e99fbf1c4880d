#include "server/scheduler/agent/user_lane.h"

#include <utility>

#include "server/time/clock.h"

namespace scalelab::server {

UserLane::UserLane() : thread_([this] { Serve(); }) {}

UserLane::~UserLane() {
  {
    SteadyMutexLock lock(&mutex_);
    stopping_ = true;
    mutex_.SignalAll();
  }
  thread_.join();
}

bool UserLane::idle() const {
  SteadyMutexLock lock(&mutex_);
  return idle_;
}

void UserLane::Start(absl::AnyInvocable<void()> work) {
  SteadyMutexLock lock(&mutex_);
  work_ = std::move(work);
  started_ = true;
  idle_ = false;
  mutex_.SignalAll();
}

bool UserLane::WaitIdle(absl::Duration deadline) {
  SteadyMutexLock lock(&mutex_);
  const auto idle = [this] {
    mutex_.AssertHeld();
    return idle_;
  };
  return mutex_.AwaitWithTimeout(idle, deadline - Clock::System().Steady());
}

void UserLane::Serve() {
  while (true) {
    absl::AnyInvocable<void()> work;
    {
      SteadyMutexLock lock(&mutex_);
      while (!started_ && !stopping_) mutex_.WaitFor(absl::InfiniteDuration());
      if (stopping_) return;
      started_ = false;
      work = std::move(work_);
    }
    work();
    work = nullptr;
    SteadyMutexLock lock(&mutex_);
    idle_ = true;
    mutex_.SignalAll();
  }
}

}  // namespace scalelab::server
