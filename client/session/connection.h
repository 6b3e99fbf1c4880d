// The line to the server: deadlines, retries, credentials, and errors in the words of a user. The only file
// of this room that deals with channels.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session/server_options.h"
#include "grpcpp/grpcpp.h"
#include "scalelab/v1/cluster.grpc.pb.h"
#include "scalelab/v1/result.grpc.pb.h"
#include "scalelab/v1/run.grpc.pb.h"
#include "scalelab/v1/study.grpc.pb.h"

namespace scalelab::client {

// What a server takes in one message.
inline constexpr size_t kMaxRequestBytes = 4U << 20;

class Connection {
 public:
  // Connects, and tells within a second when nobody listens: UNAVAILABLE with what to try; PERMISSION_DENIED
  // when the socket is not ours to open; INVALID_ARGUMENT when the token file cannot be read. `timeout` is
  // that of each call.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const ServerOptions& options,
                                                          absl::Duration timeout);

  // One unary call. A call that loses its server on the way is made again until it is answered or the time is
  // over, so it must be idempotent (a create: by its request_id).
  template <class Stub, class Request, class Response>
  absl::StatusOr<Response> Call(Stub& stub,
                                grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const Request& request) {
    Response response;
    const absl::Status status = Repeat(request.ByteSizeLong(), [&](grpc::ClientContext* context) {
      return (stub.*method)(context, request, &response);
    });
    if (!status.ok()) return status;
    return response;
  }

  // For streams: a context that ends at `deadline` and carries the credentials.
  std::unique_ptr<grpc::ClientContext> MakeContext(absl::Time deadline) const;
  // What a call's status means to a user; OK stays OK.
  absl::Status Explain(const grpc::Status& status) const;
  // Waits until the server is there again; false when `deadline` passes first.
  bool WaitForServer(absl::Time deadline) const;

  scalelab::v1::StudyService::Stub& studies() const { return *studies_; }
  scalelab::v1::RunService::Stub& runs() const { return *runs_; }
  scalelab::v1::ResultService::Stub& results() const { return *results_; }
  scalelab::v1::ClusterService::Stub& cluster() const { return *cluster_; }
  const ServerAddress& address() const { return options_.address; }

 private:
  Connection(ServerOptions options, absl::Duration timeout, std::string token);
  absl::Status Connect(absl::Time deadline) const;
  absl::Status Repeat(size_t request_bytes,
                      const std::function<grpc::Status(grpc::ClientContext*)>& call) const;
  absl::Status Unreachable() const;

  const ServerOptions options_;
  const absl::Duration timeout_;
  const std::string token_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<scalelab::v1::StudyService::Stub> studies_;
  std::unique_ptr<scalelab::v1::RunService::Stub> runs_;
  std::unique_ptr<scalelab::v1::ResultService::Stub> results_;
  std::unique_ptr<scalelab::v1::ClusterService::Stub> cluster_;
};

}  // namespace scalelab::client
