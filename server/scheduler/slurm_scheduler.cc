#include "server/scheduler/slurm_scheduler.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/scheduler/slurm_client.h"
#include "server/scheduler/slurm_commands.h"
#include "server/scheduler/slurm_view.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;

constexpr absl::Duration kForgetAfter = absl::Hours(1);      // jobs that nobody asks about any more
constexpr absl::Duration kClocksDiffer = absl::Seconds(20);  // by less; a silent worker is waited for longer

// What this process knows of one token.
struct Job {
  // Whether Slurm may have a job of this name although it does not list it.
  bool may_exist = true;
  std::string doubt;                                  // why it may
  std::optional<JobStatus> last;                      // when it was listed last
  absl::Time missing_since = absl::InfiniteFuture();  // first of the answers without it, none failed since
  absl::Time asked;
  absl::Time cancelled = absl::InfiniteFuture();  // by us, the first time
  bool seen_alive = false;                        // by this process
};

// A job that had ended before we cancelled it was silent, and it was that for a reason of its own.
Canceller CancellerOf(const Job& job, const QueueRow& row) {
  if (job.cancelled != absl::InfiniteFuture())
    return row.end < job.cancelled - kClocksDiffer ? Canceller::kSomebodyElse : Canceller::kUs;
  return job.seen_alive ? Canceller::kSomebodyElse : Canceller::kUnknown;
}

JobStatus Status(const std::string& token, const std::string& id, State state) {
  JobStatus status;
  status.token = token;
  status.external_id = id;
  status.state = state;
  return status;
}

class SlurmScheduler final : public Scheduler {
 public:
  explicit SlurmScheduler(SlurmSchedulerOptions options)
      : options_(std::move(options)), slurm_(options_.command_deadline), settle_(options_.settle) {}

  // One look at Slurm, to say early what is wrong.
  void Start();

  std::string name() const override { return "slurm"; }
  Capacity capacity() const override {
    std::lock_guard lock(mutex_);
    return CapacityOf(view_);
  }
  std::string Script(const JobRequest& request) const override {
    return SlurmScript(options_.script, request);
  }
  absl::StatusOr<std::string> Submit(const JobRequest& request) override;
  absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>& tokens) override;
  absl::StatusOr<ClusterView> View() override;
  absl::Status Cancel(const std::string& token) override;

 private:
  void Missed(const absl::Status& why);
  void Answered();
  JobStatus Listed(const std::string& token, const std::vector<QueueRow>& rows, Job& job);
  void EndDoubles(const std::vector<QueueRow>& rows, const QueueRow& kept);
  bool CertainlyGone(Job& job);
  JobStatus Uncertain(const std::string& token, const Job& job, const std::string& why) const;
  void LookIntoAccounting(std::map<std::string, JobStatus*>& gone);
  absl::Status Fits(const JobRequest& request);
  absl::Status Prepare(const JobRequest& request, const std::string& script);

  const SlurmSchedulerOptions options_;
  const SlurmClient slurm_;

  // The scheduler thread's.
  std::map<std::string, Job> jobs_;
  std::optional<SlurmClient::Site> site_;
  absl::Duration settle_;
  absl::Time away_since_ = absl::InfiniteFuture();
  absl::Time view_asked_ = absl::InfinitePast();

  mutable std::mutex mutex_;
  ClusterView view_;  // protected by mutex_
};

void SlurmScheduler::Start() {
  view_asked_ = options_.now();
  if (const absl::StatusOr<ClusterView> view = View(); view.ok()) {
    Answered();
  } else {
    Missed(view.status());
    spdlog::warn("Slurm does not answer; jobs are submitted once it does ({})",
                 std::string(view.status().message()));
  }
}

// Nothing was learnt, and what was learnt before from answers without a job counts no more: the controller
// may come back with an older state.
void SlurmScheduler::Missed(const absl::Status& why) {
  away_since_ = std::min(away_since_, options_.now());
  for (auto& [token, job] : jobs_) job.missing_since = absl::InfiniteFuture();
  spdlog::debug("Slurm: {}", why.ToString());
}

void SlurmScheduler::Answered() {
  if (away_since_ != absl::InfiniteFuture() && site_) {
    spdlog::info("Slurm answers again after {}", absl::FormatDuration(options_.now() - away_since_));
  }
  away_since_ = absl::InfiniteFuture();
  if (site_) return;
  absl::StatusOr<SlurmClient::Site> site = slurm_.AskSite();
  if (!site.ok()) return;  // asked again with the next poll
  settle_ = options_.settle == absl::ZeroDuration() ? options_.settle
                                                    : std::max(options_.settle, 2 * site->message_timeout);
  spdlog::info("Slurm {} of cluster {}, {}", site->version, site->cluster,
               site->accounting ? "with accounting" : "without accounting");
  site_ = *std::move(site);
}

absl::StatusOr<std::string> SlurmScheduler::Submit(const JobRequest& request) {
  if (!IsToken(request.token))
    return absl::InvalidArgumentError(absl::StrCat("'", Harmless(request.token), "' is no token of a job"));
  // A token of which Poll has not yet said anything is new: its first sbatch is this one.
  const bool is_new = !jobs_.contains(request.token);
  Job& job = jobs_[request.token];
  if (is_new) job.may_exist = false;
  job.asked = options_.now();
  if (job.last && IsOver(job.last->state)) return job.last->external_id;

  absl::StatusOr<Queue> queue = slurm_.Jobs(request.token);
  if (!queue.ok()) {
    Missed(queue.status());
    return absl::UnavailableError(
        absl::StrCat("not submitted, Slurm cannot be asked: ", queue.status().message()));
  }
  if (const auto found = queue->jobs.find(request.token); found != queue->jobs.end()) {
    spdlog::info("allocation {}: Slurm has its job {} already", request.token, Chosen(found->second).id);
    return Listed(request.token, found->second, job).external_id;
  }
  if (queue->Mentions(request.token) || (job.may_exist && !CertainlyGone(job))) {
    return absl::UnavailableError(
        absl::StrCat("not submitted again yet: ", Uncertain(request.token, job, "").reason));
  }
  if (absl::Status fits = Fits(request); !fits.ok()) return fits;
  const std::string script = Script(request);
  if (absl::Status prepared = Prepare(request, script); !prepared.ok()) return prepared;

  job = Job{};
  job.asked = options_.now();
  job.doubt = "Slurm has taken the job and does not list it yet";
  const SlurmClient::Submitted submitted = slurm_.Submit(request, script);
  if (!submitted.id.empty()) {
    spdlog::info("allocation {} of study {} is Slurm's job {}", request.token, request.study, submitted.id);
    job.last = Status(request.token, submitted.id, State::kPending);
    return submitted.id;
  }
  job.may_exist = submitted.refusal.open;
  job.doubt = std::string(submitted.refusal.status.message());
  return submitted.refusal.status;
}

absl::Status SlurmScheduler::Fits(const JobRequest& request) {
  {
    std::lock_guard lock(mutex_);
    if (CheckFits(view_, request).ok()) return absl::OkStatus();
  }
  // Refused only by what is true now.
  const absl::StatusOr<ClusterView> view = View();
  return view.ok() ? CheckFits(*view, request) : absl::OkStatus();
}

// The directory exists before the job writes its output there.
absl::Status SlurmScheduler::Prepare(const JobRequest& request, const std::string& script) {
  const std::string directory = AllocationDirectory(options_.script, request.token);
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  std::ofstream file(directory + "/job.sh", std::ios::trunc);
  file << script;
  file.close();
  if (!error && file) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot write ", directory, "/job.sh: ", error ? error.message() : std::strerror(errno),
                   "; is there space left, and may this user write there?"));
}

absl::StatusOr<std::vector<JobStatus>> SlurmScheduler::Poll(const std::vector<std::string>& tokens) {
  if (tokens.empty()) return std::vector<JobStatus>();
  const absl::StatusOr<Queue> queue = slurm_.Jobs();
  const absl::Time now = options_.now();
  if (!queue.ok()) {
    Missed(queue.status());
    return absl::UnavailableError(absl::StrCat(
        "Slurm has not answered for ", absl::FormatDuration(absl::Trunc(now - away_since_, absl::Seconds(1))),
        ": ", queue.status().message()));
  }
  Answered();
  std::vector<JobStatus> statuses;
  statuses.reserve(tokens.size());  // `gone` points into it
  std::map<std::string, JobStatus*> gone;
  for (const std::string& token : tokens) {
    Job& job = jobs_[token];
    job.asked = now;
    if (const auto found = queue->jobs.find(token); found != queue->jobs.end()) {
      statuses.push_back(Listed(token, found->second, job));
    } else if (job.last && IsOver(job.last->state)) {
      statuses.push_back(*job.last);  // Slurm forgets what has ended, after MinJobAge
    } else if (queue->Mentions(token)) {
      statuses.push_back(Uncertain(token, job, "squeue's line about it cannot be read"));
    } else if (job.may_exist && !CertainlyGone(job)) {
      statuses.push_back(Uncertain(token, job, ""));
    } else {
      statuses.push_back(Status(token, "", State::kUnknown));
      if (job.may_exist) gone.emplace(token, &statuses.back());
    }
  }
  LookIntoAccounting(gone);
  for (const auto& [token, status] : gone) {
    if (status->state == State::kUnknown) jobs_[token].may_exist = false;
  }
  std::erase_if(jobs_, [&](const auto& entry) { return now - entry.second.asked > kForgetAfter; });
  if (now - view_asked_ > options_.view_age) {
    view_asked_ = now;
    (void)View();
  }
  return statuses;
}

JobStatus SlurmScheduler::Listed(const std::string& token, const std::vector<QueueRow>& rows, Job& job) {
  const QueueRow& row = Chosen(rows);
  EndDoubles(rows, row);
  job.may_exist = true;
  job.missing_since = absl::InfiniteFuture();
  job.doubt = "Slurm does not list the job any more";
  std::optional<JobStatus> status = StatusOf(row, CancellerOf(job, row));
  if (!status) {
    status = Uncertain(token, job,
                       absl::StrCat("Slurm says it is ", Harmless(row.word), ", which is not known here"));
    status->external_id = row.id;
  }
  if (IsLive(row)) job.seen_alive = true;
  if (status->state == State::kFailed) {
    const std::string output = AllocationDirectory(options_.script, token) + "/job.out";
    absl::StrAppend(&status->reason, "; see ", output);
    if (!std::filesystem::exists(output))
      absl::StrAppend(&status->reason, ", which it has not made: does every node see that directory?");
  }
  job.last = status;
  return *std::move(status);
}

// Slurm runs one of them at a time; the other must not begin when this one has ended.
void SlurmScheduler::EndDoubles(const std::vector<QueueRow>& rows, const QueueRow& kept) {
  for (const QueueRow& row : rows) {
    if (&row == &kept || !IsLive(row)) continue;
    spdlog::warn("allocation {}: Slurm has two jobs for it; {} ({}) is kept, {} ({}) is cancelled", row.name,
                 kept.id, kept.word, row.id, row.word);
    if (absl::Status ended = slurm_.Cancel(row.name, row.id); !ended.ok())
      spdlog::warn("allocation {}: {}; tried again with the next poll", row.name,
                   std::string(ended.message()));
  }
}

// Called once for each answer without it.
bool SlurmScheduler::CertainlyGone(Job& job) {
  const absl::Time now = options_.now();
  job.missing_since = std::min(job.missing_since, now);
  return now - job.missing_since >= settle_;
}

JobStatus SlurmScheduler::Uncertain(const std::string& token, const Job& job, const std::string& why) const {
  JobStatus status = job.last.value_or(Status(token, "", State::kPending));
  if (!why.empty()) {
    status.reason = why;
    return status;
  }
  status.reason =
      absl::StrCat(job.doubt.empty() ? "Slurm does not list the job" : job.doubt,
                   "; it counts as gone when Slurm has not listed it for ", absl::FormatDuration(settle_));
  return status;
}

// Only when Slurm has certainly forgotten them: how they ended is then known to its database alone.
void SlurmScheduler::LookIntoAccounting(std::map<std::string, JobStatus*>& gone) {
  if (gone.empty() || !site_ || !site_->accounting) return;
  std::vector<std::string> names;
  for (const auto& [token, status] : gone) names.push_back(token);
  const absl::StatusOr<Queue> queue = slurm_.Accounted(names);
  if (!queue.ok()) {
    spdlog::warn("how {} jobs ended cannot be asked: {}", names.size(), queue.status().ToString());
    return;
  }
  for (const auto& [token, rows] : queue->jobs) {
    const auto it = gone.find(token);
    // What accounting takes for alive, the controller does not have: accounting is late.
    if (it == gone.end() || IsLive(Chosen(rows))) continue;
    *it->second = Listed(token, rows, jobs_[token]);
  }
}

absl::StatusOr<ClusterView> SlurmScheduler::View() {
  absl::StatusOr<ClusterView> view = slurm_.View();
  if (!view.ok()) return view;
  std::lock_guard lock(mutex_);
  view_ = *view;
  return view;
}

absl::Status SlurmScheduler::Cancel(const std::string& token) {
  if (!IsToken(token)) return absl::OkStatus();  // no job of ours has such a name
  Job& job = jobs_[token];
  job.asked = options_.now();
  if (job.last && IsOver(job.last->state)) return absl::OkStatus();
  job.cancelled = std::min(job.cancelled, options_.now());
  return slurm_.Cancel(token);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scheduler>> NewSlurmScheduler(SlurmSchedulerOptions options) {
  const std::string missing = MissingProgram({"sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun"});
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("scheduler slurm needs the program ", missing,
                     ", which is not on PATH; install Slurm's client programs (Debian: apt-get install "
                     "slurm-client), or use --scheduler local"));
  }
  auto scheduler = std::make_unique<SlurmScheduler>(std::move(options));
  scheduler->Start();
  return scheduler;
}

}  // namespace scalelab::server
