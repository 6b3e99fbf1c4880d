#include "server/scheduler/agent/user_lane.h"

#include <utility>

namespace scalelab::server {

UserLane::UserLane() : thread_([this] { Serve(); }) {}

UserLane::~UserLane() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

bool UserLane::idle() const {
  absl::MutexLock lock(&mutex_);
  return idle_;
}

void UserLane::Start(absl::AnyInvocable<void()> work) {
  absl::MutexLock lock(&mutex_);
  work_ = std::move(work);
  started_ = true;
  idle_ = false;
}

bool UserLane::WaitIdle(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithDeadline(absl::Condition(&idle_), deadline);
}

void UserLane::Serve() {
  while (true) {
    absl::AnyInvocable<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(
          +[](UserLane* lane) ABSL_NO_THREAD_SAFETY_ANALYSIS { return lane->started_ || lane->stopping_; },
          this));
      if (stopping_) return;
      started_ = false;
      work = std::move(work_);
    }
    work();
    work = nullptr;
    absl::MutexLock lock(&mutex_);
    idle_ = true;
  }
}

}  // namespace scalelab::server
