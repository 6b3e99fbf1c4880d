// Converts the requests and answers of agents to messages. The functions are pure.
#pragma once

#include "absl/status/statusor.h"
#include "scalelab/v1/agent.pb.h"
#include "server/scheduler/agent/agent_hub.h"

namespace scalelab::server {

void FillRequest(const AgentRequest& from, v1::ServeResponse* to);
// Moves the outputs out of the answer. Returns NOT_FOUND if a file does not exist on the agent's side, and
// FAILED_PRECONDITION if the agent has refused the request.
absl::StatusOr<CommandResult> ResultOf(v1::ServeRequest::Answer& answer);

}  // namespace scalelab::server
