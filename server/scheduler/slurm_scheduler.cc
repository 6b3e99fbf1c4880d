#include "server/scheduler/slurm_scheduler.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "server/command/command_runner.h"
#include "server/scheduler/slurm_client.h"
#include "server/scheduler/slurm_jobs.h"
#include "server/scheduler/slurm_site.h"

namespace scalelab::server {
namespace {

// Runs all jobs under the account of this process.
class SlurmScheduler final : public Scheduler {
 public:
  explicit SlurmScheduler(const SlurmSchedulerOptions& options)
      : script_(options.script),
        client_(options.runner != nullptr ? *options.runner : runner_,
                options.runner != nullptr ? *options.runner : runner_, geteuid(), options.command_timeout),
        site_(client_, {options.settle, options.view_age, options.now}),
        jobs_(client_, site_,
              {options.script, /*files_are_here=*/true, nullptr, options.now, options.wall,
               options.file_timeout}) {}

  SlurmSite& site() { return site_; }
  std::string name() const override { return "slurm"; }
  Capacity capacity() const override { return site_.capacity(); }
  std::string Script(const JobRequest& request) const override { return SlurmScript(script_, request); }
  absl::StatusOr<std::string> Submit(const JobRequest& request) override { return jobs_.Submit(request); }
  absl::StatusOr<ClusterView> View() override { return site_.View(); }
  absl::Status Cancel(const std::vector<std::string>& tokens) override { return jobs_.Cancel(tokens); }

  absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>& tokens) override {
    if (tokens.empty()) return std::vector<JobStatus>();
    const absl::StatusOr<Queue> queue = client_.Jobs();
    site_.RecordAnswer(queue.status());
    if (!queue.ok()) {
      jobs_.QueryFailed();
      return NoAnswer(site_, queue.status());
    }
    std::vector<JobStatus> statuses = jobs_.Statuses(tokens, *queue);
    site_.RefreshView();
    return statuses;
  }

 private:
  const SlurmScriptOptions script_;
  LocalCommandRunner runner_;
  const SlurmClient client_;
  SlurmSite site_;
  SlurmJobs jobs_;
};

}  // namespace

absl::Status CheckSlurmInstalled() {
  const std::string missing = MissingProgram({"sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun"});
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("scheduler slurm requires the program ", missing,
                   ", which is not on PATH; install Slurm's client programs (Debian: apt-get install "
                   "slurm-client), or use --scheduler local"));
}

absl::StatusOr<std::unique_ptr<Scheduler>> NewSlurmScheduler(SlurmSchedulerOptions options) {
  if (options.runner == nullptr) {
    if (absl::Status installed = CheckSlurmInstalled(); !installed.ok()) return installed;
  }
  auto scheduler = std::make_unique<SlurmScheduler>(options);
  scheduler->site().Start();
  return scheduler;
}

}  // namespace scalelab::server
