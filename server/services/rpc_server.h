// The gRPC servers of scalelabd: services, health check, reflection and listening sockets. scalelabd starts
// them last and stops them first.
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
  std::optional<tls::KeyPair> tls;  // for the TCP listeners; without it, TCP connections are not encrypted
  MungeLogin::Decode decode_munge;
  std::string version;
  bool reflection = false;  // serve gRPC's reflection on the Unix socket, where callers are identified
  ConnectionLimits connections;
  mode_t socket_mode = 0600;  // permissions of Unix sockets
  IdentityOptions identity;
  // The agents of users; null if jobs run under the account of this process. Must outlive the server.
  AgentHub* agents = nullptr;
  std::string runs_dir;  // with agents: the directory of the runs of all users
  // Longest duration of a unary call, and of one message of a stream, even if the caller sets
  // a longer deadline.
  absl::Duration call_limit = absl::Minutes(2);
  // Applies the rules of retention, like Retention::Prune. If `prune` is empty,
  // AdminService.Prune returns UNIMPLEMENTED.
  std::function<absl::StatusOr<v1::PruneResponse>(bool dry_run, const std::function<bool()>& over)> prune;
  // Names of the notification commands that a study may use.
  std::vector<std::string> notify_commands;
  // Counts calls. May be null. Must outlive the server.
  Metrics* metrics = nullptr;
  // The health check reports NOT_SERVING if the core thread has not responded for this time.
  absl::Duration stuck_after = absl::Seconds(10);
};

class RpcServer {
 public:
  virtual ~RpcServer() = default;
  // Returns the addresses that the server listens on, with the ports that the system has chosen.
  virtual const std::vector<std::string>& addresses() const = 0;
  // Returns why the service is not healthy, as Watchdog reports it; "" if it is healthy.
  virtual std::string problem() const = 0;
  // Returns the number of open connections.
  virtual int connections() const = 0;
  // Returns the number of calls that wait for a thread, by pool.
  virtual std::vector<std::pair<std::string, size_t>> queued_calls() const = 0;
  // Returns a channel to the services for callers inside this process. These calls need a token, and must
  // have ended when the server shuts down.
  virtual std::shared_ptr<grpc::Channel> InProcessChannel() = 0;
  virtual Authenticator& identities() = 0;
  // Replaces the lists of users who have a role.
  virtual void SetRoles(const RoleLists& lists) = 0;
  // Refuses new calls, waits up to `grace` for calls in flight, then cancels them. Returns false if a thread
  // is still blocked in a read. The thread may use all references of StartRpcServer, so the caller must
  // never destroy them.
  virtual bool Shutdown(absl::Duration grace) = 0;
};

// Starts the servers. All references must outlive the server. Returns FAILED_PRECONDITION or INVALID_ARGUMENT
// if it cannot listen on an address; the message contains the address.
absl::StatusOr<std::unique_ptr<RpcServer>> StartRpcServer(const RpcServerOptions& options,
                                                          Coordinator& coordinator, db::Store& store,
                                                          const Scheduler& scheduler, Frameworks& frameworks,
                                                          const Auth& auth);

}  // namespace scalelab::server
