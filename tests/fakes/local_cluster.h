// The local scheduler in a directory of its own, with fake workers; for tests.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "server/scheduler/local_scheduler.h"

namespace scalelab::server {

class LocalCluster {
 public:
  // What a fake worker told when it held its lock.
  struct WorkerReport {
    pid_t pid = 0;
    pid_t child = 0;
    std::string secret, devices;
  };

  explicit LocalCluster(int slots = 2, int gpus = 0);
  ~LocalCluster();  // kills what still runs

  // How workers started from now on behave; see fake_worker.cc.
  void set_mode(const std::string& mode);

  Scheduler& scheduler() { return *scheduler_; }
  const LocalSchedulerOptions& options() const { return options_; }
  std::string directory() const { return options_.directory; }

  // A scheduler that starts anew on the same directory, as after a crash of the coordinator.
  void Restart();
  // The same without a start: the coordinator is away.
  void Stop() { scheduler_.reset(); }

  // Status of one job.
  JobStatus Status(const std::string& token);
  // Waits until the job is in `state`, woken by the scheduler's own callback; fails the test after 30 s.
  JobStatus WaitFor(const std::string& token, JobStatus::State state);
  JobStatus WaitUntil(const std::string& token, const std::function<bool(JobStatus::State)>& good);
  // Waits until the next worker holds its lock.
  WorkerReport WaitForWorker();

  JobRequest Request(const std::string& token, int ranks = 1) const;

 private:
  void Start();

  LocalSchedulerOptions options_;
  std::string fifo_path_;
  int fifo_ = -1;
  std::mutex mutex_;
  std::condition_variable changed_;
  int changes_ = 0;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace scalelab::server
