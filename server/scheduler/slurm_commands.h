// Runs Slurm's programs: no shell, a deadline, bounded output, an environment of its own.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace scalelab::server {

struct CommandResult {
  int exit_code = -1;      // -1: it did not exit by itself
  int signal = 0;          // that ended it
  bool timed_out = false;  // it was killed at the deadline
  bool truncated = false;  // it wrote more than is kept, and was killed for it
  std::string out, err;

  bool ok() const { return exit_code == 0 && !truncated; }
};

// Looks `argv[0]` up on PATH, gives it `input` as standard input and `environment` ("NAME=VALUE") as its
// whole environment, in a process group of its own that does not outlive the call. Blocks until it has ended
// or `deadline` has passed, or `cancel` (a descriptor; -1: none) can be read, which ends it as the deadline
// does. FAILED_PRECONDITION: it could not be started.
absl::StatusOr<CommandResult> RunCommand(const std::vector<std::string>& argv, const std::string& input,
                                         const std::vector<std::string>& environment, absl::Duration deadline,
                                         int cancel = -1);

// The first of `programs` that is not on PATH; empty when all are.
std::string MissingProgram(const std::vector<std::string>& programs);

// What of this process's environment Slurm's programs and the jobs get: where programs and libraries are, who
// the user is, which Slurm to ask, how communication is tuned; messages in English.
// Nothing that changes what an option means (SBATCH_*, SQUEUE_*, SLURM_*), no secret.
std::vector<std::string> SlurmEnvironment();

// Why a command failed, as one line: its own words, or that it was killed.
std::string Complaint(const CommandResult& result);

}  // namespace scalelab::server
