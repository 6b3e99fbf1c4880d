// Checks the commands of the coordinator. The functions are pure.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scalelab/v1/agent.pb.h"

namespace scalelab::agent {

// The user for whom commands are executed.
struct User {
  uid_t uid = 0;
  std::string directory;  // absolute path of the directory of the user's jobs and attempts
};

// A command that may be executed, without a shell.
struct Command {
  std::vector<std::string> argv;
  std::vector<std::string> variables;  // "NAME=VALUE", to add to the environment
  std::string job;  // sbatch: the name of the job, whose directory is <user directory>/allocations/<job>
};

// Returns the command, or INVALID_ARGUMENT with the reason why it is not executed. Only options that the
// coordinator uses are allowed: sbatch takes a script from standard input, with a job name and its directory;
// squeue, sacct and scancel are limited to the user's own jobs; of scontrol, only `show` is allowed.
absl::StatusOr<Command> CheckCommand(const v1::ServeResponse::Execute& execute, const User& user);

// Returns OK if `path` is absolute and below `directory`, without "." and "..".
absl::Status CheckBelow(const std::string& path, const std::string& directory);

}  // namespace scalelab::agent
