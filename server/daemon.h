// The running scalelabd. Start-up is a flat list of steps that opens the RPC server last.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "db/maintenance.h"
#include "db/store.h"
#include "server/config.h"
#include "server/core/coordinator.h"
#include "server/data_dir.h"
#include "server/frameworks/frameworks.h"
#include "server/metrics/exporter.h"
#include "server/notify/sender.h"
#include "server/prediction/ledger.h"
#include "server/readers/agent_event_reader.h"
#include "server/readers/file_event_reader.h"
#include "server/repeats/assessor.h"
#include "server/retention/retention.h"
#include "server/scheduler/agent/agent_hub.h"
#include "server/services/rpc_server.h"
#include "server/web/web_server.h"

namespace scalelab::server {

class Daemon {
 public:
  // Starts all parts and returns when the service accepts calls. Errors are sentences for the operator.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const ServerConfig& config);
  // Stops serving, stores all accepted changes and releases the data directory. Workers and
  // their training continue.
  ~Daemon();

  // Applies the settings of `wanted` that need no restart. Writes the names of the other changed settings
  // to the log.
  void Reconfigure(const ServerConfig& wanted);
  // Returns the addresses served, in the form that clients use.
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  explicit Daemon(ServerConfig config) : config_(std::move(config)) {}

  const ServerConfig config_;  // at the start
  std::unique_ptr<DataDir> data_dir_;
  std::unique_ptr<Metrics> metrics_;  // null without --metrics
  std::unique_ptr<Auth> auth_;
  std::unique_ptr<db::Store> store_;
  std::unique_ptr<db::Maintenance> maintenance_;
  std::unique_ptr<AgentHub> agents_;  // null unless jobs run under the accounts of their users
  std::unique_ptr<Retention> retention_;
  std::unique_ptr<Sender> sender_;
  std::unique_ptr<Scorer> scorer_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Frameworks> frameworks_;
  std::unique_ptr<FileEventReader> events_;
  std::unique_ptr<AgentEventReader> agent_events_;
  std::unique_ptr<Assessor> assessor_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<RpcServer> rpc_;
  std::vector<std::string> addresses_;
  std::unique_ptr<Exporter> exporter_;  // null without --metrics
  std::unique_ptr<WebServer> web_;      // null without --web
};

}  // namespace scalelab::server
