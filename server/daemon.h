// The running scalelabd. Start-up is a flat list of steps that opens the RPC server last.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "db/maintenance.h"
#include "db/store.h"
#include "server/config.h"
#include "server/core/coordinator.h"
#include "server/data_dir.h"
#include "server/frameworks/frameworks.h"
#include "server/services/file_event_reader.h"
#include "server/services/rpc_server.h"

namespace scalelab::server {

class Daemon {
 public:
  // Starts all parts and returns when the service accepts calls. Errors are sentences for the operator.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const ServerConfig& config);
  // Stops serving, stores all accepted changes and releases the data directory. Workers and
  // their training continue.
  ~Daemon();

  const std::vector<std::string>& addresses() const { return rpc_->addresses(); }

 private:
  Daemon() = default;

  std::unique_ptr<DataDir> data_dir_;
  std::unique_ptr<Auth> auth_;
  std::unique_ptr<db::Store> store_;
  std::unique_ptr<db::Maintenance> maintenance_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Frameworks> frameworks_;
  std::unique_ptr<FileEventReader> events_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<RpcServer> rpc_;
};

}  // namespace scalelab::server
