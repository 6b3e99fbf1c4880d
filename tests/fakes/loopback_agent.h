// An agent in this process, which executes the requests of the hub like `scalelab agent`, but
// without a connection.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "agent/executor.h"
#include "server/scheduler/agent/agent_hub.h"

namespace scalelab::server {

class LoopbackAgent {
 public:
  // Connects to the hub. `directory` is the directory of the user's jobs.
  LoopbackAgent(AgentHub& hub, std::string user, std::string directory);
  // Disconnects. Waits for the program in progress.
  ~LoopbackAgent();

  // Disconnects at once, like an agent that is killed. The program in progress continues, and its
  // output is lost.
  void Kill();
  // Reads no further requests, like an agent that is suspended.
  void Suspend();
  // Waits until the agent has begun this number of requests.
  void WaitForRequests(int count);
  // Returns the number of requests begun.
  int requests();
  // Returns whether the hub has ended the connection, and why.
  absl::Status ended();

 private:
  class Stream;
  const std::shared_ptr<Stream> stream_;
};

}  // namespace scalelab::server
