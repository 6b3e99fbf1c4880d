// Implements RunService: changes go to the coordinator, reads go to the database and
// the attempts' directories.
#pragma once

#include "db/store.h"
#include "scalelab/v1/run.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/services/auth.h"
#include "server/services/reader_pool.h"

namespace scalelab::server {

class RunService final : public v1::RunService::CallbackService {
 public:
  RunService(Coordinator& coordinator, db::Store& store, ReaderPool& readers, const Auth& auth)
      : coordinator_(coordinator), store_(store), readers_(readers), auth_(auth) {}

  grpc::ServerUnaryReactor* GetRun(grpc::CallbackServerContext*, const v1::GetRunRequest*,
                                   v1::GetRunResponse*) override;
  grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext*, const v1::ListRunsRequest*,
                                     v1::ListRunsResponse*) override;
  grpc::ServerUnaryReactor* CancelRun(grpc::CallbackServerContext*, const v1::CancelRunRequest*,
                                      v1::CancelRunResponse*) override;
  grpc::ServerWriteReactor<v1::ReadRunLogResponse>* ReadRunLog(grpc::CallbackServerContext*,
                                                               const v1::ReadRunLogRequest*) override;
  grpc::ServerUnaryReactor* ExplainRun(grpc::CallbackServerContext*, const v1::ExplainRunRequest*,
                                       v1::ExplainRunResponse*) override;

 private:
  // Both read the database, so the core thread must not call them. FillRun leaves out attempts and results.
  absl::Status FillRun(const db::RunRow& row, v1::Run* run);
  absl::Status Fill(int64_t run_id, v1::Run* run);

  Coordinator& coordinator_;
  db::Store& store_;
  ReaderPool& readers_;
  const Auth& auth_;
};

}  // namespace scalelab::server
