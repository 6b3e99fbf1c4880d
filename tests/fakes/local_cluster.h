// A local scheduler with fake workers in a temporary directory, for tests.
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
  // The report of a fake worker that holds its lock.
  struct WorkerReport {
    pid_t pid = 0;
    pid_t child = 0;
    std::string secret, devices;
  };

  explicit LocalCluster(int slots = 2, int gpus = 0);
  ~LocalCluster();  // kills all remaining processes

  // Sets the behaviour of workers that start from now on; see fake_worker.cc.
  void set_mode(const std::string& mode);

  Scheduler& scheduler() { return *scheduler_; }
  const LocalSchedulerOptions& options() const { return options_; }
  std::string directory() const { return options_.directory; }

  // Restarts the scheduler on the same directory, as after a crash of the coordinator.
  void Restart();
  // Stops the scheduler, as if the coordinator were down.
  void Stop() { scheduler_.reset(); }

  // Returns the status of one job.
  JobStatus Status(const std::string& token);
  // Waits until the job is in `state`, using the scheduler's callback; fails the test after 30 s.
  JobStatus WaitFor(const std::string& token, JobStatus::State state);
  JobStatus WaitUntil(const std::string& token, const std::function<bool(JobStatus::State)>& good);
  // Waits until the next worker holds its lock, and returns its report.
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
