// Implements ClusterService from the coordinator's state, the scheduler's view and the frameworks.
#pragma once

#include <string>

#include "scalelab/v1/cluster.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/frameworks/frameworks.h"
#include "server/rpc/handler_context.h"

namespace scalelab::server {

class ClusterService final : public v1::ClusterService::CallbackService {
 public:
  ClusterService(Coordinator& coordinator, const HandlerContext& handler, const Scheduler& scheduler,
                 Frameworks& frameworks, std::string version)
      : coordinator_(coordinator),
        handler_(handler),
        scheduler_(scheduler),
        frameworks_(frameworks),
        version_(std::move(version)),
        started_(absl::ToUnixMicros(absl::Now())) {}

  grpc::ServerUnaryReactor* GetCluster(grpc::CallbackServerContext*, const v1::GetClusterRequest*,
                                       v1::GetClusterResponse*) override;
  grpc::ServerUnaryReactor* ListFrameworks(grpc::CallbackServerContext*, const v1::ListFrameworksRequest*,
                                           v1::ListFrameworksResponse*) override;

 private:
  Coordinator& coordinator_;
  const HandlerContext handler_;
  const Scheduler& scheduler_;
  Frameworks& frameworks_;
  const std::string version_;
  const db::Micros started_;
};

}  // namespace scalelab::server
