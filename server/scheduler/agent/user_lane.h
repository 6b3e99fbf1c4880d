// A thread for the commands of one user, which may block as long as the user's agent does not answer.
#pragma once

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "server/time/steady_mutex.h"

namespace scalelab::server {

class UserLane {
 public:
  UserLane();
  ~UserLane();  // blocks until the work in progress ends
  UserLane(const UserLane&) = delete;
  UserLane& operator=(const UserLane&) = delete;

  bool idle() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `work` on the lane's thread. The lane must be idle.
  void Start(absl::AnyInvocable<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until the lane is idle. Returns false if `deadline`, a time of Clock::Steady, passes first.
  bool WaitIdle(absl::Duration deadline) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Serve() ABSL_LOCKS_EXCLUDED(mutex_);

  mutable SteadyMutex mutex_;
  absl::AnyInvocable<void()> work_ ABSL_GUARDED_BY(mutex_);
  bool idle_ ABSL_GUARDED_BY(mutex_) = true;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;  // `work_` waits for the thread
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace scalelab::server
