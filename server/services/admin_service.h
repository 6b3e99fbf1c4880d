// Implements AdminService: usage, queue and drain mode from the coordinator's state, the audit
// log, and retention.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/statusor.h"
#include "scalelab/v1/admin.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/rpc/handler_context.h"

namespace scalelab::server {

// Applies the rules of retention; see Retention::Prune.
using PruneFunction =
    std::function<absl::StatusOr<v1::PruneResponse>(bool dry_run, const std::function<bool()>& over)>;

class AdminService final : public v1::AdminService::CallbackService {
 public:
  // `prune` may be empty.
  AdminService(Coordinator& coordinator, const HandlerContext& handler, PruneFunction prune)
      : coordinator_(coordinator), handler_(handler), prune_(std::move(prune)) {}

  grpc::ServerUnaryReactor* ListUsage(grpc::CallbackServerContext*, const v1::ListUsageRequest*,
                                      v1::ListUsageResponse*) override;
  grpc::ServerUnaryReactor* ListQueue(grpc::CallbackServerContext*, const v1::ListQueueRequest*,
                                      v1::ListQueueResponse*) override;
  grpc::ServerUnaryReactor* SetDrain(grpc::CallbackServerContext*, const v1::SetDrainRequest*,
                                     v1::SetDrainResponse*) override;
  grpc::ServerUnaryReactor* ListAuditEntries(grpc::CallbackServerContext*, const v1::ListAuditEntriesRequest*,
                                             v1::ListAuditEntriesResponse*) override;
  grpc::ServerUnaryReactor* Prune(grpc::CallbackServerContext*, const v1::PruneRequest*,
                                  v1::PruneResponse*) override;

 private:
  // Calls `fill(state, now, response)` with the coordinator's state, and sends the response.
  template <typename Response, typename Fill>
  grpc::ServerUnaryReactor* FromState(grpc::CallbackServerContext* context, Response* response, Fill fill);

  Coordinator& coordinator_;
  const HandlerContext handler_;
  const PruneFunction prune_;
};

}  // namespace scalelab::server
