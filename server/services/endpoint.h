// The services on one transport: the Unix socket or TCP. Each transport has its own gRPC server, because gRPC
// handlers cannot find out which listener accepted a connection.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/server.h"
#include "server/metrics/metrics.h"
#include "server/rpc/handler_context.h"
#include "server/services/admin_service.h"
#include "server/services/agent_service.h"
#include "server/services/analysis_service.h"
#include "server/services/archive_service.h"
#include "server/services/auth_service.h"
#include "server/services/cluster_service.h"
#include "server/services/prediction_service.h"
#include "server/services/result_service.h"
#include "server/services/run_service.h"
#include "server/services/study_service.h"
#include "server/services/watch_hub.h"
#include "server/services/worker_service.h"

namespace scalelab::server {

// Objects that the services of both transports share. All references must outlive the endpoints.
struct EndpointContext {
  Coordinator& coordinator;
  db::Store& store;
  CallPools& pools;
  WatchHub& watches;
  const Scheduler& scheduler;
  Frameworks& frameworks;
  const Auth& auth;
  Authenticator& identities;
  Connections& connections;
  MungeLogin& munge;
  std::string version;
  bool reflection;
  absl::Duration call_limit;
  AgentHub* agents;  // null if jobs run under the account of this process
  std::string runs_dir;
  PruneFunction prune;
  Metrics* metrics;  // may be null
  std::vector<std::string> notify_commands;
};

class Endpoint {
 public:
  // `local` is true if the connections come from the Unix socket.
  Endpoint(const EndpointContext& context, bool local);
  ~Endpoint();
  absl::Status Start();
  // Serves a new connection. Takes ownership of the descriptor. May block while the peer sends data. Closes the
  // connection after Shutdown. May be called from any thread after Start.
  void Take(int fd);
  // Returns a channel for callers inside this process.
  std::shared_ptr<grpc::Channel> InProcessChannel();
  // Sets the result of the health check.
  void SetHealthy(bool healthy);
  // Refuses new calls and cancels those in flight at `deadline`, a time of Clock::Steady.
  void Shutdown(absl::Duration deadline);

 private:
  const Access access_;
  const bool reflection_;
  Metrics* const metrics_;
  StudyService studies_;
  RunService runs_;
  ResultService results_;
  AnalysisService analysis_;
  PredictionService predictions_;
  ArchiveService archives_;
  ClusterService cluster_;
  AuthService auth_;
  AdminService admin_;
  AgentService agents_;
  WorkerService workers_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace scalelab::server
