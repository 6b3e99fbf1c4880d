// The gRPC servers of scalelabd: services, health check, reflection and listening sockets. They start last
// and stop first.
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
#include "server/services/connections.h"

namespace scalelab::server {

struct RpcServerOptions {
  std::vector<std::string> listen;  // addresses in the form of ParseAddress
  std::string version;
  bool reflection = false;  // serve gRPC's reflection, which describes the API to anyone who can connect
  ConnectionLimits connections;
  // Longest time of a unary call, and of one message of a stream, whatever deadline the caller sets.
  absl::Duration call_limit = absl::Minutes(2);
  // The health check reports NOT_SERVING when the core thread has not answered for this long.
  absl::Duration stuck_after = absl::Seconds(10);
};

class RpcServer {
 public:
  virtual ~RpcServer() = default;
  // Returns the addresses served, with the ports that the system chose.
  virtual const std::vector<std::string>& addresses() const = 0;
  // Refuses new calls, waits up to `grace` for calls in flight, then cancels them. Returns false if a thread is
  // still blocked in a read: it may use all references of StartRpcServer, which must then never be destroyed.
  virtual bool Shutdown(absl::Duration grace) = 0;
};

// All references must outlive the server. Returns FAILED_PRECONDITION or INVALID_ARGUMENT if an address
// cannot be served; the message names the address.
absl::StatusOr<std::unique_ptr<RpcServer>> StartRpcServer(const RpcServerOptions& options,
                                                          Coordinator& coordinator, db::Store& store,
                                                          const Scheduler& scheduler, Frameworks& frameworks,
                                                          const Auth& auth);

}  // namespace scalelab::server
