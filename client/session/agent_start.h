// Starts the user's agent in the background.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/server_options.h"

namespace scalelab::client {

// The files of the agent of this user for one server.
struct AgentFiles {
  std::string lock;  // on a local disk: each machine may have an agent, and the newest one serves
  std::string log;
};

// Creates their directories.
absl::StatusOr<AgentFiles> MakeAgentFiles(const ServerAddress& server);

// Takes the lock of the agent. Returns its descriptor, which must stay open, or ALREADY_EXISTS if an agent holds it.
absl::StatusOr<int> LockAgent(const AgentFiles& files);

// Continues in a process in the background: in its own session, with its output in the log. Returns a function there, to be
// called once when the agent is connected. The calling process waits for that for some seconds, prints what has happened
// and exits. Call it before any thread exists.
absl::StatusOr<std::function<void()>> Detach(const AgentFiles& files);

// Runs `scalelab agent --detach` for this server, and waits until it has returned. Returns its error message as status.
absl::Status StartAgent(const ServerOptions& server);

}  // namespace scalelab::client
