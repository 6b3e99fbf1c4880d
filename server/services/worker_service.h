// Implements WorkerService: checks the allocation secret, then passes the request to the core thread.
#pragma once

#include "scalelab/v1/worker.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/services/auth.h"

namespace scalelab::server {

class WorkerService final : public v1::WorkerService::CallbackService {
 public:
  WorkerService(Coordinator& coordinator, const Auth& auth) : coordinator_(coordinator), auth_(auth) {}

  grpc::ServerUnaryReactor* Synchronize(grpc::CallbackServerContext*, const v1::SynchronizeRequest*,
                                        v1::SynchronizeResponse*) override;
  grpc::ServerUnaryReactor* ReportEvents(grpc::CallbackServerContext*, const v1::ReportEventsRequest*,
                                         v1::ReportEventsResponse*) override;

 private:
  Coordinator& coordinator_;
  const Auth& auth_;
};

}  // namespace scalelab::server
