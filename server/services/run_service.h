// Implements RunService: changes go to the coordinator, reads go to the database and
// the attempts' directories.
#pragma once

#include "scalelab/v1/run.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/services/handler_context.h"

namespace scalelab::server {

class RunService final : public v1::RunService::CallbackService {
 public:
  RunService(Coordinator& coordinator, const HandlerContext& handler)
      : coordinator_(coordinator), handler_(handler) {}

  grpc::ServerUnaryReactor* GetRun(grpc::CallbackServerContext*, const v1::GetRunRequest*,
                                   v1::GetRunResponse*) override;
  grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext*, const v1::ListRunsRequest*,
                                     v1::ListRunsResponse*) override;
  grpc::ServerUnaryReactor* CancelRun(grpc::CallbackServerContext*, const v1::CancelRunRequest*,
                                      v1::CancelRunResponse*) override;
  grpc::ServerUnaryReactor* RetryRun(grpc::CallbackServerContext*, const v1::RetryRunRequest*,
                                     v1::RetryRunResponse*) override;
  grpc::ServerWriteReactor<v1::ReadRunLogResponse>* ReadRunLog(grpc::CallbackServerContext*,
                                                               const v1::ReadRunLogRequest*) override;
  grpc::ServerUnaryReactor* ExplainRun(grpc::CallbackServerContext*, const v1::ExplainRunRequest*,
                                       v1::ExplainRunResponse*) override;

 private:
  Coordinator& coordinator_;
  const HandlerContext handler_;
};

}  // namespace scalelab::server
