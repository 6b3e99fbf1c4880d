// The gRPC side of scalelabd: services, health, reflection, listening sockets. Opened last, closed first.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "db/store.h"
#include "server/core/coordinator.h"
#include "server/frameworks/frameworks.h"
#include "server/scheduler/scheduler.h"
#include "server/services/auth.h"

namespace scalelab::server {

struct RpcServerOptions {
  std::vector<std::string> listen;  // as ParseAddress reads them
  std::string version;
};

class RpcServer {
 public:
  virtual ~RpcServer() = default;
  // Addresses served, with the ports that the system chose.
  virtual const std::vector<std::string>& addresses() const = 0;
  // Refuses new calls, lets those under way end until the deadline, then cancels them.
  virtual void Shutdown(absl::Duration grace) = 0;
};

// All references must outlive the server. FAILED_PRECONDITION or INVALID_ARGUMENT: a sentence about the
// address that cannot be served.
absl::StatusOr<std::unique_ptr<RpcServer>> StartRpcServer(const RpcServerOptions& options,
                                                          Coordinator& coordinator, db::Store& store,
                                                          const Scheduler& scheduler, Frameworks& frameworks,
                                                          const Auth& auth);

}  // namespace scalelab::server
