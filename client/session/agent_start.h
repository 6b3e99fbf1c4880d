// Starts the user's agent in the background.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/server_options.h"
#include "files/lock_file.h"

namespace scalelab::client {

// The files of the agent of this user for one server.
struct AgentFiles {
  std::string lock;  // on a local disk: each machine may have an agent, and the newest one serves
  std::string log;
};

// Returns the files of the agent for `server`, and creates the directories of these files.
absl::StatusOr<AgentFiles> MakeAgentFiles(const ServerAddress& server);

// Takes the lock of the agent. Returns ALREADY_EXISTS if an agent holds it.
absl::StatusOr<LockFile> LockAgent(const AgentFiles& files);

// Forks a background process, which has its own session and writes to the log. In this process, returns a
// function that must be called once when the agent is connected. The calling process waits some seconds for
// that call, prints the result and exits. Must be called before any thread exists.
absl::StatusOr<std::function<void()>> Detach(const AgentFiles& files);

// Runs `scalelab agent --detach` for this server, and waits for at most a minute until this command has
// ended. Returns its error message as a status. Then kills all processes of the command except for the agent,
// which leads a session of its own. `program` is the path of scalelab; empty: that of this process.
absl::Status StartAgent(const ServerOptions& server, std::string program = "");

}  // namespace scalelab::client
