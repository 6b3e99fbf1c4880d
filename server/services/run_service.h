// Implements RunService. The coordinator makes changes; reads use the database and the
// directories of attempts.
#pragma once

#include "scalelab/v1/run.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/readers/log_reader.h"
#include "server/rpc/handler_context.h"
#include "server/scheduler/agent/agent_hub.h"

namespace scalelab::server {

class RunService final : public v1::RunService::CallbackService {
 public:
  // `agents` is null if jobs run under the account of this process. Otherwise users' agents read the files of
  // runs, and `runs_dir` is the directory of the runs of all users.
  RunService(Coordinator& coordinator, const HandlerContext& handler, AgentHub* agents, std::string runs_dir)
      : coordinator_(coordinator), handler_(handler), agents_(agents), runs_dir_(std::move(runs_dir)) {}

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
  ReadPiece PiecesOf(const std::string& directory) const;
  // Returns Subject::filesystem of reads of the directory.
  std::string WaitsFor(const std::string& directory) const;

  Coordinator& coordinator_;
  const HandlerContext handler_;
  AgentHub* const agents_;
  const std::string runs_dir_;
};

}  // namespace scalelab::server
