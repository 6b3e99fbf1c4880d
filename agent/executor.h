// Carries out the requests of the coordinator.
#pragma once

#include <string>
#include <vector>

#include "agent/checks.h"
#include "scalelab/v1/agent.pb.h"
#include "server/command/command_runner.h"

namespace scalelab::agent {

// Answers one request; blocks as long as a program runs or a filesystem blocks. May be called from any thread.
class Executor {
 public:
  // `runner` runs programs under the account of this process, and must outlive the executor.
  Executor(User user, server::CommandRunner& runner) : user_(std::move(user)), runner_(runner) {}

  v1::ServeRequest::Answer Answer(const v1::ServeResponse& request) const;
  const User& user() const { return user_; }

 private:
  v1::ServeRequest::Answer Execute(const v1::ServeResponse::Execute& execute) const;

  const User user_;
  server::CommandRunner& runner_;
};

// Returns one line for the log that describes a request. It contains no secrets.
std::string Describe(const v1::ServeResponse& request);

}  // namespace scalelab::agent
