#include "tests/fakes/local_cluster.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "files/lock_file.h"
#include "gtest/gtest.h"
#include "server/scheduler/local_job.h"

namespace scalelab::server {

LocalCluster::LocalCluster(int slots, int gpus) {
  std::string directory = testing::TempDir() + "local-cluster-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) ADD_FAILURE() << "cannot make " << directory;
  options_.directory = directory + "/allocations";
  options_.worker_program = FAKE_WORKER_PROGRAM;
  options_.server_address = "unix:/nowhere";
  options_.slots = slots;
  options_.gpus = gpus;
  options_.kill_after = absl::Milliseconds(100);
  options_.changed = [this] {
    std::lock_guard lock(mutex_);
    ++changes_;
    changed_.notify_all();
  };
  fifo_path_ = directory + "/report";
  mkfifo(fifo_path_.c_str(), 0600);
  // Open it for writing too, so that reading never returns end of file.
  fifo_ = open(fifo_path_.c_str(), O_RDWR | O_CLOEXEC);
  setenv("FAKE_WORKER_REPORT", fifo_path_.c_str(), 1);
  set_mode("");
  Start();
}

LocalCluster::~LocalCluster() {
  scheduler_.reset();
  // Every worker leads a session, which contains the processes it has started. A worker that has just started
  // holds no lock yet, but is a child of this process. A worker that has ended may have left a child process
  // that holds the lock.
  std::ifstream children("/proc/self/task/" + std::to_string(getpid()) + "/children");
  for (pid_t pid; children >> pid;) {
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory)) {
    const absl::StatusOr<LockHolder> lock = FindLockHolder(LockOf(entry.path()));
    if (lock.ok() && lock->held) kill(-lock->pid, SIGKILL);
  }
  close(fifo_);
  std::filesystem::remove_all(std::filesystem::path(options_.directory).parent_path());
}

void LocalCluster::set_mode(const std::string& mode) { setenv("FAKE_WORKER", mode.c_str(), 1); }

void LocalCluster::Start() {
  absl::StatusOr<std::unique_ptr<Scheduler>> scheduler = NewLocalScheduler(options_);
  ASSERT_TRUE(scheduler.ok()) << scheduler.status();
  scheduler_ = *std::move(scheduler);
}

void LocalCluster::Restart() {
  scheduler_.reset();
  Start();
}

JobStatus LocalCluster::Status(const std::string& token) {
  const absl::StatusOr<std::vector<JobStatus>> statuses = scheduler_->Poll({token});
  if (!statuses.ok() || statuses->size() != 1) {
    ADD_FAILURE() << statuses.status();
    return {};
  }
  return statuses->front();
}

JobStatus LocalCluster::WaitFor(const std::string& token, JobStatus::State state) {
  return WaitUntil(token, [&](JobStatus::State now) { return now == state; });
}

JobStatus LocalCluster::WaitUntil(const std::string& token,
                                  const std::function<bool(JobStatus::State)>& good) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (true) {
    int before;
    {
      std::lock_guard lock(mutex_);
      before = changes_;
    }
    JobStatus status = Status(token);
    if (good(status.state)) return status;
    std::unique_lock lock(mutex_);
    if (IsOver(status.state) || !changed_.wait_until(lock, give_up, [&] { return changes_ != before; })) {
      ADD_FAILURE() << token << " is in state " << static_cast<int>(status.state) << " (" << status.reason
                    << ")";
      return status;
    }
  }
}

LocalCluster::WorkerReport LocalCluster::WaitForWorker() {
  std::string line;
  for (char c = 0; c != '\n';) {
    pollfd ready{fifo_, POLLIN, 0};
    if (poll(&ready, 1, 30'000) != 1 || read(fifo_, &c, 1) != 1) {
      ADD_FAILURE() << "no worker took its lock";
      break;
    }
    line += c;
  }
  WorkerReport report;
  std::istringstream(line) >> report.pid >> report.child >> report.secret >> report.devices;
  return report;
}

JobRequest LocalCluster::Request(const std::string& token, int ranks) const {
  JobRequest request;
  request.token = token;
  request.secret = "secret-of-" + token;
  request.study = "a-study";
  request.ranks_per_node = ranks;
  return request;
}

}  // namespace scalelab::server
