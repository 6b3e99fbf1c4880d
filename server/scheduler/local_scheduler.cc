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
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "files/lock_file.h"
#include "server/scheduler/local_job.h"
#include "server/scheduler/watched_job.h"
#include "server/time/clock.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;

// Returns the names of the GPUs for jobs, in the spelling of CUDA_VISIBLE_DEVICES.
// `count` is LocalSchedulerOptions::gpus.
std::vector<std::string> FindGpus(int count) {
  std::vector<std::string> gpus;
  if (count >= 0) {
    for (int i = 0; i < count; ++i) gpus.push_back(absl::StrCat(i));
  } else if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    gpus = absl::StrSplit(visible, ',', absl::SkipWhitespace());
  } else {
    while (access(absl::StrCat("/dev/nvidia", gpus.size()).c_str(), F_OK) == 0)
      gpus.push_back(absl::StrCat(gpus.size()));
  }
  return gpus;
}

// Returns the environment of this process, without secrets and with the GPUs of the job.
std::vector<std::string> Environment(const std::vector<std::string>& gpus) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (absl::StartsWith(*entry, "SCALELAB_ALLOCATION_SECRET=")) continue;
    if (!gpus.empty() && absl::StartsWith(*entry, "CUDA_VISIBLE_DEVICES=")) continue;
    environment.push_back(*entry);
  }
  if (!gpus.empty()) environment.push_back("CUDA_VISIBLE_DEVICES=" + absl::StrJoin(gpus, ","));
  return environment;
}

// A job that waits for slots.
struct PendingJob {
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
  absl::Status Cancel(const std::vector<std::string>& tokens) override;

 private:
  std::string Directory(const std::string& token) const {
    return absl::StrCat(options_.directory, "/", token);
  }
  // Starts to watch the jobs of an earlier process that are still alive.
  absl::Status FindLiveJobs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Wakes up the thread.
  void Wake();
  absl::StatusOr<PendingJob> Check(const JobRequest& request) const;

  // Body of the thread, which starts and watches jobs.
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<JobStatus> Find(const std::string& token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<JobStatus> FindInDirectory(const std::string& token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CancelJob(const std::string& token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Launch(const PendingJob& next, absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reserves the slots and GPUs of a job.
  void Hold(const JobRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees the slots and GPUs of a job, and stores how the job ended.
  void Finish(const std::string& token, const JobRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Marks a job that may be alive. If there is no mark, a restarted process finds the job only at
  // its first Poll.
  void Mark(const std::string& token) const { std::ofstream(absl::StrCat(live_, "/", token)); }

  const LocalSchedulerOptions options_;
  const std::string live_;
  const std::vector<std::string> gpus_;
  const std::string boot_id_ = BootId();
  std::string node_;
  int wake_ = -1;  // eventfd
  std::thread thread_;

  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;  // call options_.changed
  std::deque<PendingJob> pending_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<WatchedJob>> watched_ ABSL_GUARDED_BY(mutex_);
  // Ended jobs whose job.json could not be written.
  std::map<std::string, JobRecord> unwritten_ ABSL_GUARDED_BY(mutex_);
  int64_t free_slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> free_gpus_ ABSL_GUARDED_BY(mutex_);
};

LocalScheduler::LocalScheduler(LocalSchedulerOptions options)
    : options_(std::move(options)),
      live_(options_.directory + "/.live"),
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
      absl::MutexLock lock(&mutex_);
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
        absl::StrCat("cannot create ", options_.directory, ": ", error.message()));
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0)
    return absl::ResourceExhaustedError(absl::StrCat("cannot create an eventfd: ", std::strerror(errno)));
  absl::MutexLock lock(&mutex_);
  if (absl::Status found = FindLiveJobs(); !found.ok()) return found;
  thread_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

absl::Status LocalScheduler::FindLiveJobs() {
  std::error_code error, ignored;
  // If an earlier version has made the folder, it has no marks. Examine all jobs once in this case.
  const bool marked = std::filesystem::exists(live_, error);
  if (error) return absl::FailedPreconditionError(absl::StrCat("cannot read ", live_, ": ", error.message()));
  const std::string source = marked ? live_ : options_.directory;
  std::vector<std::string> live;
  std::filesystem::directory_iterator entry(source, error);
  for (const std::filesystem::directory_iterator end; !error && entry != end; entry.increment(error)) {
    const std::string token = entry->path().filename().string();
    const absl::StatusOr<JobStatus> status = Find(token);
    if (!status.ok()) return status.status();
    if (!IsOver(status->state)) live.push_back(token);
    if (marked && IsOver(status->state)) std::filesystem::remove(entry->path(), ignored);
  }
  if (error)
    return absl::FailedPreconditionError(absl::StrCat("cannot read ", source, ": ", error.message()));
  if (!marked) std::filesystem::create_directory(live_, ignored);
  for (const std::string& token : live) Mark(token);
  return absl::OkStatus();
}

void LocalScheduler::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      write(wake_, &one, sizeof(one));  // fails only when it is already set
}

absl::StatusOr<std::string> LocalScheduler::Submit(const JobRequest& request) {
  if (request.token.empty() || request.token.find_first_of("/.") != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("'", request.token, "' is not a valid token of a job"));
  }
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<JobStatus> status = Find(request.token);
  if (!status.ok()) return status.status();
  if (status->state != State::kUnknown) return status->external_id;
  absl::StatusOr<PendingJob> job = Check(request);
  if (!job.ok()) return job.status();
  pending_.push_back(*std::move(job));
  Wake();
  return request.token;
}

absl::StatusOr<PendingJob> LocalScheduler::Check(const JobRequest& request) const {
  if (request.nodes != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job requests ", request.nodes,
                     " nodes, but the local scheduler has one; request fewer ranks, or more ranks_per_node"));
  }
  const int64_t ranks = request.ranks_per_node;
  PendingJob job{request, ranks * request.cpus_per_rank, ranks * request.gpus_per_rank};
  if (ranks < 1 || request.cpus_per_rank < 1)
    return absl::InvalidArgumentError("a job needs at least one rank with one core");
  if (job.slots > options_.slots) {
    return absl::InvalidArgumentError(absl::StrCat(
        ranks, " ranks with ", request.cpus_per_rank, " cores each need ", job.slots,
        " slots, but this machine has ", options_.slots,
        "; request fewer ranks or cpus_per_rank, or start scalelabd with a larger --local-slots"));
  }
  if (job.gpus > std::ssize(gpus_)) {
    return absl::InvalidArgumentError(
        absl::StrCat(ranks, " ranks with ", request.gpus_per_rank, " GPUs each need ", job.gpus,
                     " GPUs, but this machine has ", gpus_.size(), "; request fewer ranks or gpus_per_rank"));
  }
  if (request.exclusive) job.slots = options_.slots;
  return job;
}

absl::StatusOr<std::vector<JobStatus>> LocalScheduler::Poll(const std::vector<std::string>& tokens) {
  std::vector<JobStatus> statuses;
  absl::MutexLock lock(&mutex_);
  for (const std::string& token : tokens) {
    absl::StatusOr<JobStatus> status = Find(token);
    if (!status.ok()) return status.status();
    statuses.push_back(*std::move(status));
  }
  return statuses;
}

absl::Status LocalScheduler::Cancel(const std::vector<std::string>& tokens) {
  absl::MutexLock lock(&mutex_);
  absl::Status first_error;
  for (const std::string& token : tokens) first_error.Update(CancelJob(token));
  return first_error;
}

absl::Status LocalScheduler::CancelJob(const std::string& token) {
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
    std::erase_if(pending_, [&](const PendingJob& job) { return job.request.token == token; });
    changed_ = true;
    Wake();
  }
  return absl::OkStatus();
}

absl::StatusOr<ClusterView> LocalScheduler::View() {
  absl::MutexLock lock(&mutex_);
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
  for (size_t ahead = 0; ahead < pending_.size(); ++ahead) {
    if (pending_[ahead].request.token != token) continue;
    return JobStatus{
        token, token, State::kPending,
        ahead > 0 ? absl::StrCat("waits behind ", ahead, ahead == 1 ? " job" : " jobs", " for this machine")
                  : absl::StrCat("waits for ", pending_[0].slots, " slots of this machine; ",
                                 std::max<int64_t>(free_slots_, 0), " free")};
  }
  if (const auto over = unwritten_.find(token); over != unwritten_.end()) {
    return JobStatus{token, token, over->second.state, over->second.reason};
  }
  return FindInDirectory(token);
}

// Reads the status of a job from its folder. Starts to watch a job that is still alive.
absl::StatusOr<JobStatus> LocalScheduler::FindInDirectory(const std::string& token) {
  const std::string directory = Directory(token);
  const JobStatus unknown{token, "", State::kUnknown, ""};
  absl::StatusOr<std::optional<JobRecord>> found = ReadJobRecord(directory);
  if (!found.ok()) return found.status();
  if (!found->has_value()) return unknown;
  JobRecord record = **std::move(found);
  if (IsOver(record.state)) return JobStatus{token, token, record.state, record.reason};

  const absl::StatusOr<LockHolder> lock = FindLockHolder(LockOf(directory));
  if (!lock.ok()) return lock.status();
  if (lock->held) {
    spdlog::info("job {}: still running, found after a restart", token);
    Mark(token);
    Hold(record);
    watched_.emplace(token, std::make_unique<WatchedJob>(directory, std::move(record)));
    Wake();
    return JobStatus{token, token, State::kRunning, ""};
  }
  // A worker that has never acquired the lock has done nothing. If it starts later, it must first
  // acquire the lock.
  if (lock->pid == 0) return unknown;
  const bool same_boot = record.boot_id == boot_id_;
  record.state = same_boot ? State::kFailed : State::kNodeFail;
  record.reason = same_boot ? absl::StrCat("its worker ended while the coordinator was stopped; see ",
                                           directory, "/worker.log")
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
      absl::MutexLock lock(&mutex_);
      if (stop_) return;
      const absl::Duration now = Clock::System().Steady();
      absl::Duration due = absl::InfiniteDuration();
      for (auto it = watched_.begin(); it != watched_.end();) {
        if (it->second->Step(now, options_.kill_after)) {
          Finish(it->first, it->second->record());
          it = watched_.erase(it);
        } else {
          ++it;
        }
      }
      while (!pending_.empty() && pending_[0].slots <= free_slots_ &&
             pending_[0].gpus <= std::ssize(free_gpus_)) {
        const PendingJob next = std::move(pending_.front());
        pending_.pop_front();
        Launch(next, now);
      }
      for (const auto& [token, job] : watched_) {
        if (job->pidfd() >= 0) watch.push_back({job->pidfd(), POLLIN, 0});
        due = std::min(due, job->NextDue(now));
      }
      // Round up, so that the last millisecond is not spent in a busy loop. Wait at most a day, because
      // poll's argument is an int.
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

void LocalScheduler::Launch(const PendingJob& next, absl::Duration now) {
  const JobRequest& request = next.request;
  const std::string directory = Directory(request.token);
  JobRecord record;
  record.slots = static_cast<int>(next.slots);
  record.gpus.assign(free_gpus_.begin(), free_gpus_.begin() + next.gpus);
  record.boot_id = boot_id_;
  if (request.time_limit > absl::ZeroDuration()) {
    record.time_limit = request.time_limit;
    record.deadline = now + request.time_limit;
  }
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
                                  LockOf(directory)};
  if (!options_.server_certificate.empty())
    worker.insert(worker.end(), {"--certificate", absl::Base64Escape(options_.server_certificate)});
  Mark(request.token);
  // Only exclusive jobs are pinned: pinned ranks of two jobs could share a core.
  if (request.exclusive) worker.push_back("--bind");
  absl::StatusOr<std::unique_ptr<WatchedJob>> job =
      WatchedJob::Start(directory, record, worker, Environment(record.gpus), request.secret);
  if (!job.ok()) {
    record.state = State::kBootFail;
    record.reason = std::string(job.status().message());
    Finish(request.token, record);
    return;
  }
  spdlog::info("job {} of study {}: started on {} slots", request.token, request.study, next.slots);
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
  spdlog::info("job {}: ended: {}", token, record.reason);
  free_slots_ += record.slots;
  for (const std::string& gpu : record.gpus) {
    if (std::find(gpus_.begin(), gpus_.end(), gpu) != gpus_.end()) free_gpus_.push_back(gpu);
  }
  if (absl::Status written = WriteJobRecord(Directory(token), record); !written.ok()) {
    spdlog::error("{}", written.ToString());
    unwritten_.emplace(token, record);
  } else {
    std::error_code ignored;  // if the mark remains, the next start examines the job
    std::filesystem::remove(absl::StrCat(live_, "/", token), ignored);
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
