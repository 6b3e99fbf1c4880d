// Checks the health of the service periodically, and returns unused memory to the system.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/core/coordinator.h"

namespace scalelab::server {

class Watchdog {
 public:
  // Starts a thread that calls `report` whenever the health of the service changes. The service is healthy at
  // the start. `problem` is "" if the service is healthy; "core_thread" if the core thread has not responded
  // for `stuck_after`; "database" if the last commit to the database has failed and is at most a minute old;
  // "worker_calls" if the threads of WorkerService handle no calls.
  Watchdog(Coordinator& coordinator, absl::Duration stuck_after,
           std::function<void(const std::string& problem)> report);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  // The last answer of the core thread. Shared with the core thread, which may answer after the
  // watchdog was destroyed.
  struct Answer {
    absl::Mutex mutex;
    absl::Duration at ABSL_GUARDED_BY(mutex);  // Clock::Steady
    bool pending ABSL_GUARDED_BY(mutex) = false;
    db::Micros commit_failed ABSL_GUARDED_BY(mutex) = 0;  // of State
    absl::Duration failure_seen
        ABSL_GUARDED_BY(mutex);  // time of Clock::Steady at the first answer that reported this failure
    bool can_write ABSL_GUARDED_BY(mutex) = true;
  };
  void Run();
  std::string Check();
  std::string ProblemOf(const Answer& answer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(answer.mutex);

  Coordinator& coordinator_;
  const absl::Duration stuck_after_;
  const std::function<void(const std::string&)> report_;
  const std::shared_ptr<Answer> answer_ = std::make_shared<Answer>();
  // The timeouts of std::condition_variable follow the steady clock; those of absl::Mutex follow the wall clock.
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace scalelab::server
