// Implements ArchiveService, which sends and receives studies as archive files.
#pragma once

#include <atomic>
#include <memory>

#include "grpcpp/support/server_callback.h"
#include "scalelab/v1/archive.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/rpc/auth.h"
#include "server/rpc/handler_context.h"

namespace scalelab::server {

// Stores each archive in a temporary file without a name in the data directory. Therefore a slow client
// delays no transaction, and an uploaded archive is checked completely before its rows are stored.
class ArchiveService final : public v1::ArchiveService::CallbackService {
 public:
  // All references must outlive the service. The key of `auth` seals archives.
  ArchiveService(Coordinator& coordinator, HandlerContext handler, const Auth& auth)
      : coordinator_(coordinator), handler_(handler), auth_(auth) {}

  grpc::ServerWriteReactor<v1::ReadArchiveResponse>* ReadArchive(
      grpc::CallbackServerContext* context, const v1::ReadArchiveRequest* request) override;
  grpc::ServerReadReactor<v1::RestoreArchiveRequest>* RestoreArchive(
      grpc::CallbackServerContext* context, v1::RestoreArchiveResponse* response) override;

 private:
  Coordinator& coordinator_;
  const HandlerContext handler_;
  const Auth& auth_;
  // Number of restores in progress. It is shared, because a restore may outlive the service.
  const std::shared_ptr<std::atomic<int>> restores_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace scalelab::server
