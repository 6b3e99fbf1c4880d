#include "server/scheduler/local_scheduler.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/scheduler/local_job.h"
#include "server/scheduler/watched_job.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;

// Names of the GPUs to give out, as CUDA_VISIBLE_DEVICES spells them; `wanted` as in LocalSchedulerOptions.
std::vector<std::string> FindGpus(int wanted) {
  std::vector<std::string> gpus;
  if (wanted >= 0) {
    for (int i = 0; i < wanted; ++i) gpus.push_back(absl::StrCat(i));
  } else if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    gpus = absl::StrSplit(visible, ',', absl::SkipWhitespace());
  } else {
    while (access(absl::StrCat("/dev/nvidia", gpus.size()).c_str(), F_OK) == 0)
      gpus.push_back(absl::StrCat(gpus.size()));
  }
  return gpus;
}

// This process's environment and what a job adds to it.
std::vector<std::string> Environment(const JobRequest& request, const std::vector<std::string>& gpus) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (absl::StartsWith(*entry, "SCALELAB_ALLOCATION_SECRET=")) continue;
    if (!gpus.empty() && absl::StartsWith(*entry, "CUDA_VISIBLE_DEVICES=")) continue;
    environment.push_back(*entry);
  }
  environment.push_back("SCALELAB_ALLOCATION_SECRET=" + request.secret);
  if (!gpus.empty()) environment.push_back("CUDA_VISIBLE_DEVICES=" + absl::StrJoin(gpus, ","));
  return environment;
}

// A job that waits for slots.
struct Waiting {
  JobRequest request;
  int64_t slots = 0;
  int64_t gpus = 0;
};

class LocalScheduler final : public Scheduler {
 public:
  explicit LocalScheduler(LocalSchedulerOptions options);
  ~LocalScheduler() override;
  absl::Status Start();

  std::string name() const override { return "local"; }
  Capacity capacity() const override {
    return {options_.slots, options_.slots, static_cast<int>(gpus_.size())};
  }
  std::string Script(const JobRequest&) const override { return ""; }
  absl::StatusOr<std::string> Submit(const JobRequest& request) override;
  absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>& tokens) override;
  absl::StatusOr<ClusterView> View() override;
  absl::Status Cancel(const std::string& token) override;

 private:
  std::string Directory(const std::string& token) const {
    return absl::StrCat(options_.directory, "/", token);
  }
  void Wake();
  absl::StatusOr<Waiting> Check(const JobRequest& request) const;

  // The thread: whatever happens to a job after Submit happens there.
  void Watch();

  // All of these with mutex_ held.
  absl::StatusOr<JobStatus> Find(const std::string& token);
  absl::StatusOr<JobStatus> FindInDirectory(const std::string& token);
  void Launch(const Waiting& next, absl::Time now);
  void Hold(const JobRecord& record);
  void Finish(const std::string& token, const JobRecord& record);

  const LocalSchedulerOptions options_;
  const std::vector<std::string> gpus_;
  const std::string boot_id_ = BootId();
  std::string node_;
  int wake_ = -1;  // eventfd
  std::thread thread_;

  std::mutex mutex_;  // protects all below
  bool stop_ = false;
  bool changed_ = false;  // options_.changed is to be called
  std::deque<Waiting> waiting_;
  std::map<std::string, std::unique_ptr<WatchedJob>> watched_;
  std::map<std::string, JobRecord> unwritten_;  // jobs that are over and whose job.json could not say so
  int64_t free_slots_;
  std::vector<std::string> free_gpus_;
};

LocalScheduler::LocalScheduler(LocalSchedulerOptions options)
    : options_(std::move(options)),
      gpus_(FindGpus(options_.gpus)),
      free_slots_(options_.slots),
      free_gpus_(gpus_) {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  node_ = name;
}

LocalScheduler::~LocalScheduler() {
  if (thread_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    Wake();
    thread_.join();
  }
  if (wake_ >= 0) close(wake_);
}

absl::Status LocalScheduler::Start() {
  std::error_code error;
  std::filesystem::create_directories(options_.directory, error);
  if (error)
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make ", options_.directory, ": ", error.message()));
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0)
    return absl::ResourceExhaustedError(absl::StrCat("cannot make an eventfd: ", std::strerror(errno)));
  std::lock_guard lock(mutex_);
  std::filesystem::directory_iterator entries(options_.directory, error);
  if (error)
    return absl::FailedPreconditionError(
        absl::StrCat("cannot read ", options_.directory, ": ", error.message()));
  for (const auto& entry : entries) {
    if (absl::StatusOr<JobStatus> status = Find(entry.path().filename().string()); !status.ok())
      return status.status();
  }
  thread_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

void LocalScheduler::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      write(wake_, &one, sizeof(one));  // fails only when it is set already
}

absl::StatusOr<std::string> LocalScheduler::Submit(const JobRequest& request) {
  if (request.token.empty() || request.token.find_first_of("/.") != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("'", request.token, "' is no token of a job"));
  }
  std::lock_guard lock(mutex_);
  const absl::StatusOr<JobStatus> status = Find(request.token);
  if (!status.ok()) return status.status();
  if (status->state != State::kUnknown) return status->external_id;
  absl::StatusOr<Waiting> waiting = Check(request);
  if (!waiting.ok()) return waiting.status();
  waiting_.push_back(*std::move(waiting));
  Wake();
  return request.token;
}

absl::StatusOr<Waiting> LocalScheduler::Check(const JobRequest& request) const {
  if (request.nodes != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the local scheduler has one node, and ", request.nodes,
                     " are asked for; ask for fewer ranks, or more ranks_per_node"));
  }
  const int64_t ranks = request.ranks_per_node;
  Waiting waiting{request, ranks * request.cpus_per_rank, ranks * request.gpus_per_rank};
  if (ranks < 1 || request.cpus_per_rank < 1)
    return absl::InvalidArgumentError("a job needs at least one rank with one core");
  if (waiting.slots > options_.slots) {
    return absl::InvalidArgumentError(absl::StrCat(
        ranks, " ranks with ", request.cpus_per_rank, " cores each need ", waiting.slots,
        " slots, and this machine gives out ", options_.slots,
        "; ask for fewer ranks or cpus_per_rank, or start scalelabd with a larger --local-slots"));
  }
  if (waiting.gpus > std::ssize(gpus_)) {
    return absl::InvalidArgumentError(absl::StrCat(
        ranks, " ranks with ", request.gpus_per_rank, " GPUs each need ", waiting.gpus,
        " GPUs, and this machine gives out ", gpus_.size(), "; ask for fewer ranks or gpus_per_rank"));
  }
  if (request.exclusive) waiting.slots = options_.slots;
  return waiting;
}

absl::StatusOr<std::vector<JobStatus>> LocalScheduler::Poll(const std::vector<std::string>& tokens) {
  std::vector<JobStatus> statuses;
  std::lock_guard lock(mutex_);
  for (const std::string& token : tokens) {
    absl::StatusOr<JobStatus> status = Find(token);
    if (!status.ok()) return status.status();
    statuses.push_back(*std::move(status));
  }
  return statuses;
}

absl::Status LocalScheduler::Cancel(const std::string& token) {
  std::lock_guard lock(mutex_);
  const absl::StatusOr<JobStatus> status = Find(token);
  if (!status.ok()) return status.status();
  if (status->state == State::kRunning) {
    watched_.at(token)->End(State::kCancelled);
    Wake();
  } else if (status->state == State::kPending) {
    JobRecord record;
    record.boot_id = boot_id_;
    record.state = State::kCancelled;
    record.reason = "cancelled before it was started";
    if (absl::Status written = WriteJobRecord(Directory(token), record); !written.ok()) return written;
    std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.request.token == token; });
    changed_ = true;
    Wake();
  }
  return absl::OkStatus();
}

absl::StatusOr<ClusterView> LocalScheduler::View() {
  std::lock_guard lock(mutex_);
  ClusterView::Node node;
  node.name = node_;
  node.cpus = options_.slots;
  node.cpus_allocated = options_.slots - static_cast<int>(free_slots_);
  node.gpus = static_cast<int>(gpus_.size());
  node.gpus_allocated = node.gpus - static_cast<int>(free_gpus_.size());
  node.state = node.cpus_allocated == 0 ? "IDLE" : free_slots_ <= 0 ? "ALLOCATED" : "MIXED";
  return ClusterView{{}, {node}};
}

absl::StatusOr<JobStatus> LocalScheduler::Find(const std::string& token) {
  if (watched_.contains(token)) return JobStatus{token, token, State::kRunning, ""};
  for (size_t ahead = 0; ahead < waiting_.size(); ++ahead) {
    if (waiting_[ahead].request.token != token) continue;
    return JobStatus{
        token, token, State::kPending,
        ahead > 0 ? absl::StrCat("waits behind ", ahead, ahead == 1 ? " job" : " jobs", " for this machine")
                  : absl::StrCat("waits for ", waiting_[0].slots, " slots of this machine, ",
                                 std::max<int64_t>(free_slots_, 0), " are free")};
  }
  if (const auto over = unwritten_.find(token); over != unwritten_.end()) {
    return JobStatus{token, token, over->second.state, over->second.reason};
  }
  return FindInDirectory(token);
}

// A live job that is found here is watched from now on.
absl::StatusOr<JobStatus> LocalScheduler::FindInDirectory(const std::string& token) {
  const std::string directory = Directory(token);
  const JobStatus unknown{token, "", State::kUnknown, ""};
  absl::StatusOr<std::optional<JobRecord>> found = ReadJobRecord(directory);
  if (!found.ok()) return found.status();
  if (!found->has_value()) return unknown;
  JobRecord record = **std::move(found);
  if (IsOver(record.state)) return JobStatus{token, token, record.state, record.reason};

  const absl::StatusOr<LockView> lock = LookAtLock(directory);
  if (!lock.ok()) return lock.status();
  if (lock->held) {
    spdlog::info("job {} is still running, found again", token);
    Hold(record);
    watched_.emplace(token, std::make_unique<WatchedJob>(directory, std::move(record)));
    Wake();
    return JobStatus{token, token, State::kRunning, ""};
  }
  // A worker that never took the lock has done nothing; should it still come, it has to win the lock first.
  if (lock->pid == 0) return unknown;
  const bool same_boot = record.boot_id == boot_id_;
  record.state = same_boot ? State::kFailed : State::kNodeFail;
  record.reason = same_boot ? absl::StrCat("its worker ended while the coordinator was away; see ", directory,
                                           "/worker.log")
                            : "the machine was restarted";
  if (absl::Status written = WriteJobRecord(directory, record); !written.ok()) return written;
  return JobStatus{token, token, record.state, record.reason};
}

void LocalScheduler::Watch() {
  while (true) {
    std::vector<pollfd> watch{{wake_, POLLIN, 0}};
    int timeout = -1;
    bool changed = false;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      const absl::Time now = absl::Now();
      absl::Time due = absl::InfiniteFuture();
      for (auto it = watched_.begin(); it != watched_.end();) {
        if (it->second->Step(now, options_.kill_after)) {
          Finish(it->first, it->second->record());
          it = watched_.erase(it);
        } else {
          ++it;
        }
      }
      while (!waiting_.empty() && waiting_[0].slots <= free_slots_ &&
             waiting_[0].gpus <= std::ssize(free_gpus_)) {
        const Waiting next = std::move(waiting_.front());
        waiting_.pop_front();
        Launch(next, now);
      }
      for (const auto& [token, job] : watched_) {
        if (job->pidfd() >= 0) watch.push_back({job->pidfd(), POLLIN, 0});
        due = std::min(due, job->NextDue(now));
      }
      // Rounded up, or the last millisecond would be spent spinning; a day at most, which poll can count.
      const absl::Duration wait = std::clamp(due - now, absl::ZeroDuration(), absl::Hours(24));
      if (!watched_.empty()) timeout = static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1;
      changed = std::exchange(changed_, false);
    }
    if (changed && options_.changed) options_.changed();
    poll(watch.data(), watch.size(), timeout);
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t cleared = read(wake_, &count, sizeof(count));
  }
}

void LocalScheduler::Launch(const Waiting& next, absl::Time now) {
  const JobRequest& request = next.request;
  const std::string directory = Directory(request.token);
  JobRecord record;
  record.slots = static_cast<int>(next.slots);
  record.gpus.assign(free_gpus_.begin(), free_gpus_.begin() + next.gpus);
  record.boot_id = boot_id_;
  if (request.time_limit > absl::ZeroDuration()) record.deadline = now + request.time_limit;
  Hold(record);
  std::vector<std::string> worker{options_.worker_program,
                                  "--server",
                                  options_.server_address,
                                  "--allocation",
                                  request.token,
                                  "--node",
                                  node_,
                                  "--node-index",
                                  "0",
                                  "--lock",
                                  directory + "/lock"};
  // Bound to cores that another job is on, ranks could not get out of each other's way.
  if (request.exclusive) worker.push_back("--bind");
  absl::StatusOr<std::unique_ptr<WatchedJob>> job =
      WatchedJob::Start(directory, record, worker, Environment(request, record.gpus));
  if (!job.ok()) {
    record.state = State::kBootFail;
    record.reason = std::string(job.status().message());
    Finish(request.token, record);
    return;
  }
  spdlog::info("job {} of study {} is started on {} slots", request.token, request.study, next.slots);
  watched_.emplace(request.token, *std::move(job));
  changed_ = true;
}

void LocalScheduler::Hold(const JobRecord& record) {
  free_slots_ -= record.slots;
  std::erase_if(free_gpus_, [&](const std::string& gpu) {
    return std::find(record.gpus.begin(), record.gpus.end(), gpu) != record.gpus.end();
  });
}

void LocalScheduler::Finish(const std::string& token, const JobRecord& record) {
  spdlog::info("job {} is over: {}", token, record.reason);
  free_slots_ += record.slots;
  for (const std::string& gpu : record.gpus) {
    if (std::find(gpus_.begin(), gpus_.end(), gpu) != gpus_.end()) free_gpus_.push_back(gpu);
  }
  if (absl::Status written = WriteJobRecord(Directory(token), record); !written.ok()) {
    spdlog::error("{}", written.ToString());
    unwritten_.emplace(token, record);
  }
  changed_ = true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scheduler>> NewLocalScheduler(LocalSchedulerOptions options) {
  auto scheduler = std::make_unique<LocalScheduler>(std::move(options));
  if (absl::Status status = scheduler->Start(); !status.ok()) return status;
  return scheduler;
}

}  // namespace scalelab::server
