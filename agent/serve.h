// One connection of an agent to the coordinator.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "scalelab/v1/agent.grpc.pb.h"
#include "server/command/command_runner.h"

namespace scalelab::agent {

struct ServeOptions {
  std::string version;
  std::string host;
  server::CommandRunner* runner = nullptr;  // runs programs under the account of this process
  // Called once, when the coordinator has accepted the agent.
  std::function<void()> connected;
  // Called with a line for the log. May be called from several threads.
  std::function<void(const std::string& line)> log;
};

// Answers requests until the connection ends, and returns how it ended. Blocks. Ends the connection if this
// process was suspended for a while: the coordinator may have given up requests that arrive late, and a
// submission must not be made after that.
grpc::Status Serve(v1::AgentService::Stub& stub, std::unique_ptr<grpc::ClientContext> context,
                   const ServeOptions& options);

}  // namespace scalelab::agent
