// Runs programs without a shell, with a timeout, a limit for the output, and an explicit environment.
//
// Every process starts through posix_spawn, because a process with gRPC threads must not fork. The functions
// are safe to call from any thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace scalelab::server {

// A process to start.
struct SpawnOptions {
  std::vector<std::string> argv;         // argv[0] is looked up on PATH unless it contains a slash
  std::vector<std::string> environment;  // the whole environment, as "NAME=VALUE"
  int in = -1, out = -1, err = -1;  // descriptors that become the standard streams; all other ones are closed
  bool new_session = false;         // leads a new session; otherwise only a new process group
};

// Starts a process with the default action for every signal and no signal blocked. The caller reaps it.
// Returns FAILED_PRECONDITION if the process cannot be started.
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// How a program ended and what it wrote.
struct CommandResult {
  int exit_code = -1;      // -1: it did not exit by itself
  int signal = 0;          // that ended it
  bool timed_out = false;  // it was killed at the timeout or because of `cancel`
  bool truncated = false;  // it wrote more than 16 MiB and was killed
  std::string lost;        // why it is unknown whether the program ran and how it ended; empty if it is known
  std::string out, err;

  bool ok() const { return exit_code == 0 && !truncated; }
};

// Runs a program to its end, with `input` as standard input and `environment` ("NAME=VALUE") as its whole
// environment. Blocks until the program has ended, `timeout` has passed, or the descriptor `cancel` (-1:
// none) is readable; in the last two cases the program is killed. The program leads a process group that is
// killed before the call returns. Returns FAILED_PRECONDITION if the program cannot be started.
absl::StatusOr<CommandResult> RunCommand(const std::vector<std::string>& argv, const std::string& input,
                                         const std::vector<std::string>& environment, absl::Duration timeout,
                                         int cancel = -1);

// Returns the first of `programs` that is not on PATH; empty when all are.
std::string MissingProgram(const std::vector<std::string>& programs);

// Returns the variables of this process that commands and jobs inherit: where programs and libraries are, who
// the user is, which Slurm cluster to use, how communication is tuned. LC_ALL makes messages English.
// Excluded are secrets and variables that change what an option means (SBATCH_*, SQUEUE_*, other SLURM_*).
std::vector<std::string> CommandEnvironment();

}  // namespace scalelab::server
