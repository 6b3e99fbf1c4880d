// Implements AgentService: connects the agents of users to the hub.
#pragma once

#include <string>

#include "grpcpp/support/server_callback.h"
#include "scalelab/v1/agent.grpc.pb.h"
#include "server/rpc/auth.h"
#include "server/scheduler/agent/agent_hub.h"

namespace scalelab::server {

class AgentService final : public v1::AgentService::CallbackService {
 public:
  // `hub` is null if jobs run under the account of this process; then the service refuses agents. `runs_dir`
  // is the directory of the runs of all users. `access` and `hub` must outlive the service.
  AgentService(const Access& access, AgentHub* hub, std::string runs_dir)
      : access_(access), hub_(hub), runs_dir_(std::move(runs_dir)) {}

  grpc::ServerBidiReactor<v1::ServeRequest, v1::ServeResponse>* Serve(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* GetAgent(grpc::CallbackServerContext* context, const v1::GetAgentRequest* request,
                                     v1::GetAgentResponse* response) override;

 private:
  const Access& access_;
  AgentHub* const hub_;
  const std::string runs_dir_;
};

}  // namespace scalelab::server
