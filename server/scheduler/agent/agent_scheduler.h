// A scheduler that runs each job under the account of its user: through the agent of that user, which executes Slurm's
// programs. The jobs of a user are those of slurm_scheduler.h, with the same guarantees.
//
// Where users may see the jobs of others, this process asks Slurm for the jobs of all users with one squeue, also for users
// whose agent is away. Where they may not (PrivateData=jobs), each agent asks for its own user.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/scheduler/agent/agent_hub.h"
#include "server/scheduler/slurm_scheduler.h"

namespace scalelab::server {

struct AgentSchedulerOptions {
  SlurmSchedulerOptions slurm;
  // How long a call waits for the agent of a user. The agent continues afterwards, and meanwhile the calls of other users
  // are made.
  absl::Duration patience = absl::Seconds(3);
  // Returns the users of all jobs that may exist, by token. Asked for a token that was not submitted by this process.
  std::function<absl::StatusOr<std::map<std::string, std::string>>()> users_of_jobs;
  // Returns the uid of a user, or nothing if there is no such account. Default: the accounts of this machine.
  std::function<std::optional<uid_t>(const std::string& user)> uid_of;
};

// Returns the directory of a user's jobs and attempts below `runs_dir`.
std::string UserDirectory(const std::string& runs_dir, const std::string& user);

// Returns the user of an attempt's directory, UserDirectory/study/run/token. Returns an empty string for another directory:
// that of an attempt whose job ran under the account of this service.
std::string UserOfDirectory(const std::string& runs_dir, absl::string_view directory);

// As NewSlurmScheduler. `hub` must outlive the scheduler; stop it before the scheduler is destroyed, so that no call waits
// for an agent.
absl::StatusOr<std::unique_ptr<Scheduler>> NewAgentScheduler(AgentSchedulerOptions options, AgentHub& hub);

}  // namespace scalelab::server
