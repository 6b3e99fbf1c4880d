#include "server/scheduler/slurm_jobs.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planted/bug.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;

// Jobs that no call has named for this long are forgotten.
constexpr absl::Duration kForgetAfter = absl::Hours(1);
// Maximum number of jobs that one scancel cancels, so that its command line stays short.
constexpr size_t kIdsPerCommand = 1000;
// Maximum difference between the clocks of this machine and the controller.
constexpr absl::Duration kClockSkew = absl::Seconds(20);

JobStatus Status(const std::string& token, const std::string& id, State state) {
  JobStatus status;
  status.token = token;
  status.external_id = id;
  status.state = state;
  return status;
}

// Writes the script into the directory of the allocation, which must exist before the job writes
// its output there.
absl::Status WriteScriptTo(const std::string& directory, const std::string& script) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  std::ofstream file(directory + "/job.sh", std::ios::trunc);
  file << script;
  file.close();
  if (!error && file) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot write ", directory, "/job.sh: ", error ? error.message() : std::strerror(errno),
                   "; check the free space and the permissions"));
}

}  // namespace

SlurmJobs::SlurmJobs(SlurmClient client, SlurmSite& site, Options options)
    : slurm_(std::move(client)),
      site_(site),
      options_(std::move(options)),
      files_(options_.files_are_here ? std::make_unique<FileLane>(options_.file_timeout) : nullptr) {}

// Returns who cancelled a job. If the job ended before this process called scancel, somebody
// else cancelled it.
Canceller SlurmJobs::CancellerOf(const TrackedJob& job, const QueueRow& row) {
  if (job.cancelled != absl::InfiniteFuture())
    return row.end < job.cancelled - kClockSkew ? Canceller::kSomebodyElse : Canceller::kUs;
  return job.seen_alive ? Canceller::kSomebodyElse : Canceller::kUnknown;
}

void SlurmJobs::QueryFailed() {
  for (auto& [token, job] : jobs_) job.missing_since = absl::InfiniteFuture();
}

absl::StatusOr<std::string> SlurmJobs::Submit(const JobRequest& request) {
  if (!IsToken(request.token))
    return absl::InvalidArgumentError(
        absl::StrCat("'", Printable(request.token), "' is not a valid token of a job"));
  // If the token is not tracked, this process has not called sbatch for it.
  const bool is_new = !jobs_.contains(request.token);
  TrackedJob& job = jobs_[request.token];
  if (is_new) job.may_exist = false;
  job.asked = options_.now();
  if (job.last && IsOver(job.last->state)) return job.last->external_id;
  if (options_.ready) {
    if (absl::Status ready = options_.ready(); !ready.ok()) return ready;
  }

  absl::StatusOr<Queue> queue = slurm_.Jobs(request.token);
  if (!queue.ok()) {
    QueryFailed();
    site_.RecordAnswer(queue.status());
    return absl::UnavailableError(
        absl::StrCat("not submitted: Slurm cannot be queried: ", queue.status().message()));
  }
  if (Planted(Bug::kSecondSubmitBlind)) *queue = Queue();
  if (const auto found = queue->jobs.find(request.token); found != queue->jobs.end()) {
    spdlog::info("allocation {}: Slurm already has its job {}", request.token, Choose(found->second).id);
    return Listed(request.token, found->second, job).external_id;
  }
  if (queue->Mentions(request.token) || (job.may_exist && !CertainlyGone(job))) {
    return absl::UnavailableError(
        absl::StrCat("not submitted again yet: ", Uncertain(request.token, job, "").reason));
  }
  if (absl::Status fits = site_.Fits(request); !fits.ok()) return fits;
  const std::string script = SlurmScript(options_.script, request);
  if (options_.files_are_here) {
    if (absl::Status written = WriteScript(request, script); !written.ok()) return written;
  }

  job = TrackedJob{};
  job.asked = options_.now();
  job.doubt = "Slurm has accepted the job and does not list it yet";
  const SlurmClient::Submitted submitted =
      slurm_.Submit(request, script, AllocationDirectory(options_.script, request.token));
  if (!submitted.id.empty()) {
    spdlog::info("allocation {} of study {}: submitted as Slurm job {}", request.token, request.study,
                 submitted.id);
    job.last = Status(request.token, submitted.id, State::kPending);
    return submitted.id;
  }
  job.may_exist = submitted.refusal.may_exist;
  job.doubt = std::string(submitted.refusal.status.message());
  return submitted.refusal.status;
}

absl::Status SlurmJobs::WriteScript(const JobRequest& request, const std::string& script) {
  const std::string directory = AllocationDirectory(options_.script, request.token);
  const absl::Status written = files_->Run([directory, script] { return WriteScriptTo(directory, script); });
  if (!absl::IsUnavailable(written)) return written;
  return absl::UnavailableError(absl::StrCat(
      "not submitted: the directory of runs ", options_.script.runs_dir, " does not respond (",
      written.message(), "); check its filesystem. The job is submitted when the directory responds again"));
}

// Returns whether the file certainly does not exist.
bool SlurmJobs::IsMissing(const std::string& file) {
  const absl::Status missing = files_->Run([file]() -> absl::Status {
    std::error_code error;  // an error does not show whether the file exists
    if (std::filesystem::exists(file, error) || error) return absl::OkStatus();
    return absl::NotFoundError("");
  });
  return absl::IsNotFound(missing);
}

std::vector<JobStatus> SlurmJobs::Statuses(const std::vector<std::string>& tokens, const Queue& queue) {
  const absl::Time now = options_.now();
  std::vector<JobStatus> statuses;
  statuses.reserve(tokens.size());  // keeps the pointers in `gone` valid
  std::map<std::string, JobStatus*> gone;
  for (const std::string& token : tokens) {
    TrackedJob& job = jobs_[token];
    job.asked = now;
    if (const auto found = queue.jobs.find(token); found != queue.jobs.end()) {
      statuses.push_back(Listed(token, found->second, job));
    } else if (job.last && IsOver(job.last->state)) {
      statuses.push_back(*job.last);  // squeue lists ended jobs only for MinJobAge
    } else if (queue.Mentions(token)) {
      statuses.push_back(Uncertain(token, job, "its line in the output of squeue is malformed"));
    } else if (job.may_exist && !CertainlyGone(job)) {
      statuses.push_back(Uncertain(token, job, ""));
    } else {
      statuses.push_back(Status(token, "", State::kUnknown));
      if (job.may_exist) gone.emplace(token, &statuses.back());
    }
  }
  ReadAccounting(gone);
  for (const auto& [token, status] : gone) {
    if (status->state == State::kUnknown) jobs_[token].may_exist = false;
  }
  std::erase_if(jobs_, [&](const auto& entry) { return now - entry.second.asked > kForgetAfter; });
  return statuses;
}

// Returns the status of a job that Slurm lists, and stores it.
JobStatus SlurmJobs::Listed(const std::string& token, const std::vector<QueueRow>& rows, TrackedJob& job) {
  const QueueRow& row = Choose(rows);
  CancelDuplicates(rows, row);
  job.may_exist = true;
  job.missing_since = absl::InfiniteFuture();
  job.doubt = "Slurm does not list the job any more";
  std::optional<JobStatus> status = StatusOf(row, CancellerOf(job, row));
  if (!status) {
    status =
        Uncertain(token, job, absl::StrCat("its Slurm state ", Printable(row.slurm_state), " is unknown"));
    status->external_id = row.id;
  }
  if (IsLive(row)) job.seen_alive = true;
  if (status->state == State::kFailed) {
    const std::string output = AllocationDirectory(options_.script, token) + "/job.out";
    absl::StrAppend(&status->reason, "; see ", output);
    if (options_.files_are_here && IsMissing(output))
      absl::StrAppend(&status->reason, ", which does not exist: is that directory visible on every node?");
  }
  job.last = status;
  return *std::move(status);
}

// Slurm runs only one of the jobs at a time. Cancels the other ones, so that they do not start afterwards.
void SlurmJobs::CancelDuplicates(const std::vector<QueueRow>& rows, const QueueRow& kept) {
  for (const QueueRow& row : rows) {
    if (&row == &kept || !IsLive(row)) continue;
    spdlog::warn("allocation {}: Slurm has two jobs for it; keeping {} ({}), cancelling {} ({})", row.name,
                 kept.id, kept.slurm_state, row.id, row.slurm_state);
    if (absl::Status ended = slurm_.Cancel(row.name, row.id); !ended.ok())
      spdlog::warn("allocation {}: {}; the next poll retries", row.name, std::string(ended.message()));
  }
}

// Records an answer of squeue that does not list the job. Returns whether the job was missing from all
// answers for the settling time.
bool SlurmJobs::CertainlyGone(TrackedJob& job) {
  const absl::Time now = options_.now();
  job.missing_since = std::min(job.missing_since, now);
  return now - job.missing_since >= site_.settle();
}

// Returns the last known status with the reason `why`. If `why` is empty, the reason is why the job
// may still exist.
JobStatus SlurmJobs::Uncertain(const std::string& token, const TrackedJob& job,
                               const std::string& why) const {
  JobStatus status = job.last.value_or(Status(token, "", State::kPending));
  if (!why.empty()) {
    status.reason = why;
    return status;
  }
  status.reason = absl::StrCat(job.doubt.empty() ? "Slurm does not list the job" : job.doubt,
                               "; it counts as gone after ", absl::FormatDuration(site_.settle()),
                               " without it in the list");
  return status;
}

// Looks up how jobs ended that squeue certainly does not list any more.
void SlurmJobs::ReadAccounting(std::map<std::string, JobStatus*>& gone) {
  if (gone.empty() || !site_.accounting()) return;
  std::vector<std::string> names;
  for (const auto& [token, status] : gone) names.push_back(token);
  const absl::StatusOr<Queue> queue = slurm_.Accounted(names);
  if (!queue.ok()) {
    spdlog::warn("cannot look up how {} jobs ended: {}", names.size(), queue.status().ToString());
    return;
  }
  for (const auto& [token, rows] : queue->jobs) {
    const auto it = gone.find(token);
    // If the accounting database has a live job that the controller does not list, the database is not
    // up to date.
    if (it == gone.end() || IsLive(Choose(rows))) continue;
    *it->second = Listed(token, rows, jobs_[token]);
  }
}

absl::Status SlurmJobs::Cancel(const std::vector<std::string>& tokens) {
  std::set<std::string> live;
  for (const std::string& token : tokens) {
    if (!IsToken(token)) continue;  // no job of this service has such a name
    TrackedJob& job = jobs_[token];
    job.asked = options_.now();
    if (job.last && IsOver(job.last->state)) continue;
    // Wall-clock time, because it is compared with times of Slurm.
    job.cancelled = std::min(job.cancelled, options_.wall());
    live.insert(token);
  }
  if (live.empty()) return absl::OkStatus();
  if (live.size() == 1) return slurm_.Cancel(*live.begin());
  // scancel accepts only one name, but many ids, so look up the ids of the jobs first.
  const absl::StatusOr<Queue> queue = slurm_.Jobs();
  if (!queue.ok()) return queue.status();
  std::vector<std::string> ids;
  for (const auto& [token, rows] : queue->jobs) {
    if (!live.contains(token) && !Planted(Bug::kOtherJobsCancelled)) continue;
    for (const QueueRow& row : rows) {
      if (IsLive(row)) ids.push_back(row.id);
    }
  }
  for (size_t first = 0; first < ids.size(); first += kIdsPerCommand) {
    const size_t last = std::min(first + kIdsPerCommand, ids.size());
    if (auto s = slurm_.CancelIds({ids.begin() + first, ids.begin() + last}); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace scalelab::server
