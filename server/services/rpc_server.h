// The gRPC server of scalelabd: services, health check, reflection and listening sockets. It starts last
// and stops first.
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
  std::vector<std::string> listen;  // addresses in the form of ParseAddress
  std::string version;
};

class RpcServer {
 public:
  virtual ~RpcServer() = default;
  // Returns the addresses served, with the ports that the system chose.
  virtual const std::vector<std::string>& addresses() const = 0;
  // Refuses new calls, waits up to `grace` for calls in flight, then cancels them.
  virtual void Shutdown(absl::Duration grace) = 0;
};

// All references must outlive the server. Returns FAILED_PRECONDITION or INVALID_ARGUMENT if an address
// cannot be served; the message names the address.
absl::StatusOr<std::unique_ptr<RpcServer>> StartRpcServer(const RpcServerOptions& options,
                                                          Coordinator& coordinator, db::Store& store,
                                                          const Scheduler& scheduler, Frameworks& frameworks,
                                                          const Auth& auth);

}  // namespace scalelab::server
