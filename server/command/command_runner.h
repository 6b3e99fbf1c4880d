// The interface to programs that run under an account: that of this process, or another one through its agent.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/command/command.h"

namespace scalelab::server {

// Methods may be called from any thread.
class CommandRunner {
 public:
  virtual ~CommandRunner() = default;
  // Runs argv[0], a program on the PATH of the account, to its end: with `input` as standard input, and with the
  // account's CommandEnvironment() and `variables` ("NAME=VALUE") as environment. Blocks until the program has ended or
  // has been killed at `timeout`. An error means that the program was certainly not started. If it is unknown whether
  // the program was started or how it ended, `lost` of the result gives the reason.
  virtual absl::StatusOr<CommandResult> Run(const std::vector<std::string>& argv, const std::string& input,
                                            const std::vector<std::string>& variables,
                                            absl::Duration timeout) = 0;
};

// Runs programs on this machine, under the account of this process.
class LocalCommandRunner final : public CommandRunner {
 public:
  LocalCommandRunner() : environment_(CommandEnvironment()) {}
  absl::StatusOr<CommandResult> Run(const std::vector<std::string>& argv, const std::string& input,
                                    const std::vector<std::string>& variables,
                                    absl::Duration timeout) override {
    std::vector<std::string> environment = environment_;
    environment.insert(environment.end(), variables.begin(), variables.end());
    return RunCommand(argv, input, environment, timeout);
  }

 private:
  const std::vector<std::string> environment_;
};

}  // namespace scalelab::server
