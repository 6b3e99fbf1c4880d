// The gRPC servers of scalelabd: services, health check, reflection and listening sockets. They start last
// and stop first.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "db/store.h"
#include "grpcpp/channel.h"
#include "scalelab/v1/admin.pb.h"
#include "server/core/coordinator.h"
#include "server/frameworks/frameworks.h"
#include "server/metrics/metrics.h"
#include "server/rpc/auth.h"
#include "server/rpc/connections.h"
#include "server/scheduler/agent/agent_hub.h"
#include "server/scheduler/scheduler.h"
#include "server/services/session_calls.h"
#include "tls/certificate.h"

namespace scalelab::server {

struct RpcServerOptions {
  std::vector<std::string> listen;  // addresses in the form of ParseAddress
  std::optional<tls::KeyPair> tls;  // of the TCP listeners; without it they are not encrypted
  MungeLogin::Decode decode_munge;
  std::string version;
  bool reflection = false;  // serve gRPC's reflection on the Unix socket, whose callers are known
  ConnectionLimits connections;
  mode_t socket_mode = 0600;  // of Unix sockets
  IdentityOptions identity;
  // The agents of users; null if jobs run under the account of this process. Must outlive the server.
  AgentHub* agents = nullptr;
  std::string runs_dir;  // with agents: the directory of the runs of all users
  // Longest time of a unary call, and of one message of a stream, whatever deadline the caller sets.
  absl::Duration call_limit = absl::Minutes(2);
  // Applies the rules of retention, as Retention::Prune. If it is not set, AdminService.Prune returns UNIMPLEMENTED.
  std::function<absl::StatusOr<v1::PruneResponse>(bool dry_run, const std::function<bool()>& over)> prune;
  // Names of the commands that a study may ask to be notified with.
  std::vector<std::string> notify_commands;
  // Null, or counts the calls; must outlive the server.
  Metrics* metrics = nullptr;
  // The health check reports NOT_SERVING when the core thread has not answered for this long.
  absl::Duration stuck_after = absl::Seconds(10);
};

class RpcServer {
 public:
  virtual ~RpcServer() = default;
  // Returns the addresses served, with the ports that the system chose.
  virtual const std::vector<std::string>& addresses() const = 0;
  // Returns why the service is not healthy, as Watchdog reports it; empty if it is.
  virtual std::string problem() const = 0;
  // Returns the number of open connections.
  virtual int connections() const = 0;
  // Returns the number of calls that wait for a thread, by pool.
  virtual std::vector<std::pair<std::string, size_t>> queued_calls() const = 0;
  // Returns a channel to the services for callers inside this process, who need a token. No call may be in flight when
  // the server shuts down.
  virtual std::shared_ptr<grpc::Channel> InProcessChannel() = 0;
  virtual Authenticator& identities() = 0;
  // Replaces the lists of users who have a role.
  virtual void SetRoles(const RoleLists& lists) = 0;
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
