// A scheduler that runs each job under the account of its user: through the agent of that user,
// which executes Slurm's programs. The jobs of each user are handled as in slurm_scheduler.h, with
// the same guarantees.
//
// If users may see the jobs of others, this process queries the jobs of all users with one squeue, even
// for users whose agent is not connected. Otherwise (PrivateData=jobs), each agent queries the jobs of
// its own user.
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
  // Time that a call waits for the agent of a user, and for the lookups of accounts. After this time the
  // agent still continues its work, and the calls of other users are made.
  absl::Duration patience = absl::Seconds(3);
  // Returns the users of all jobs that may exist, by token. Called for a token that was not submitted
  // by this process.
  std::function<absl::StatusOr<std::map<std::string, std::string>>()> users_of_jobs;
  // Returns the uid of a user, or nothing if there is no such account. Returns UNAVAILABLE if this cannot be
  // found out now. Runs on separate threads, possibly after the scheduler is destroyed. Default: the accounts
  // of this machine.
  std::function<absl::StatusOr<std::optional<uid_t>>(const std::string& user)> uid_of;
};

// Returns the directory of a user's jobs and attempts below `runs_dir`.
std::string DirectoryOfUser(const std::string& runs_dir, const std::string& user);

// Returns the user of an attempt's directory, DirectoryOfUser/study/run/token. Returns an empty string for another directory:
// that of an attempt whose job ran under the account of this service.
std::string UserOfDirectory(const std::string& runs_dir, absl::string_view directory);

// Creates the scheduler. Returns the errors of NewSlurmScheduler. `hub` must outlive the scheduler. Stop the
// hub before the scheduler is destroyed, so that no call waits for an agent.
absl::StatusOr<std::unique_ptr<Scheduler>> NewAgentScheduler(AgentSchedulerOptions options, AgentHub& hub);

}  // namespace scalelab::server
