// The connection to the server: deadlines, retries, credentials and error messages for users. The only file
// of this library that creates channels and stubs.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/session/server_options.h"
#include "client/session/session_token.h"
#include "grpcpp/grpcpp.h"
#include "scalelab/v1/admin.grpc.pb.h"
#include "scalelab/v1/agent.grpc.pb.h"
#include "scalelab/v1/analysis.grpc.pb.h"
#include "scalelab/v1/archive.grpc.pb.h"
#include "scalelab/v1/auth.grpc.pb.h"
#include "scalelab/v1/cluster.grpc.pb.h"
#include "scalelab/v1/prediction.grpc.pb.h"
#include "scalelab/v1/result.grpc.pb.h"
#include "scalelab/v1/run.grpc.pb.h"
#include "scalelab/v1/study.grpc.pb.h"

namespace scalelab::client {

// The server's limit for one message.
inline constexpr size_t kMaxRequestBytes = 4U << 20;

class Connection {
 public:
  // Connects. Returns within about a second if nobody listens. Errors: UNAVAILABLE with what to try if the
  // server cannot be reached; PERMISSION_DENIED if the user may not open the socket; INVALID_ARGUMENT if the
  // token file cannot be read. `timeout` applies to each call.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const ServerOptions& options,
                                                          absl::Duration timeout);

  // Makes one unary call. If the connection breaks, the call is repeated until it is answered or the timeout
  // expires, so the call must be idempotent (a create is idempotent through its request_id).
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

  // Makes a call whose answer is a stream. Passes each message to `take` and cancels the call when `take`
  // returns false. Returns the status of the call; OK if it was cancelled in this way. Like Call, gets a new
  // session token if the server refuses the stored one.
  template <class Stub, class Request, class Response, class Take>
  grpc::Status Read(Stub& stub,
                    std::unique_ptr<grpc::ClientReader<Response>> (Stub::*method)(grpc::ClientContext*,
                                                                                  const Request&),
                    const Request& request, absl::Time deadline, const Take& take) const {
    for (bool renewed = false;; renewed = true) {
      const auto context = MakeContext(deadline);
      const auto reader = (stub.*method)(context.get(), request);
      Response message;
      bool begun = false, wanted = true;
      while (wanted && reader->Read(&message)) {
        begun = true;
        wanted = take(message);
      }
      if (!wanted) context->TryCancel();
      grpc::Status status = reader->Finish();
      if (!wanted) return grpc::Status::OK;
      if (begun || renewed || !Renew(status, deadline)) return status;
    }
  }

  // Returns a context for a stream, with the credentials and `deadline`. Without a token file, the credentials of an
  // encrypted connection are a session token; getting one may take calls.
  std::unique_ptr<grpc::ClientContext> MakeContext(absl::Time deadline) const;
  // Gets a new session token if `status` is that of a call whose session token the server has refused: an
  // earlier server at this address may have issued it. Returns whether there is a new token. The caller may
  // then repeat the call once. Blocks until `deadline` at most.
  bool Renew(const grpc::Status& status, absl::Time deadline) const ABSL_LOCKS_EXCLUDED(session_mutex_);
  // Converts a call's status to an error message for users. OK stays OK.
  absl::Status Explain(const grpc::Status& status) const;
  // Waits until the server is reachable again. Returns false if `deadline` passes first.
  bool WaitForServer(absl::Time deadline) const;

  scalelab::v1::StudyService::Stub& studies() const { return *studies_; }
  scalelab::v1::RunService::Stub& runs() const { return *runs_; }
  scalelab::v1::ResultService::Stub& results() const { return *results_; }
  scalelab::v1::AnalysisService::Stub& analysis() const { return *analysis_; }
  scalelab::v1::PredictionService::Stub& predictions() const { return *predictions_; }
  scalelab::v1::ArchiveService::Stub& archives() const { return *archives_; }
  scalelab::v1::ClusterService::Stub& cluster() const { return *cluster_; }
  scalelab::v1::AuthService::Stub& auth() const { return *auth_; }
  scalelab::v1::AdminService::Stub& admin() const { return *admin_; }
  scalelab::v1::AgentService::Stub& agents() const { return *agents_; }
  const ServerAddress& address() const { return options_.address; }
  const ServerOptions& options() const { return options_; }

 private:
  Connection(ServerOptions options, absl::Duration timeout, std::string token,
             std::shared_ptr<grpc::Channel> channel);
  absl::Status Connect(absl::Time deadline) const;
  // Returns the token for the next call; empty for none. `refused`: the server has refused the last one.
  std::string Token(absl::Time deadline, bool refused = false) const ABSL_LOCKS_EXCLUDED(session_mutex_);
  absl::Status Repeat(size_t request_bytes,
                      const std::function<grpc::Status(grpc::ClientContext*)>& call) const;
  // Returns why the server cannot be reached. Connects once more to find out.
  absl::Status Unreachable() const;

  const ServerOptions options_;
  const absl::Duration timeout_;
  const std::string token_;  // of the token file; empty for none
  mutable absl::Mutex session_mutex_;
  mutable SessionToken session_ ABSL_GUARDED_BY(session_mutex_);
  // Why there is no session token; OK before the first attempt to get one.
  mutable absl::Status no_session_ ABSL_GUARDED_BY(session_mutex_);
  const std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<scalelab::v1::StudyService::Stub> studies_;
  std::unique_ptr<scalelab::v1::RunService::Stub> runs_;
  std::unique_ptr<scalelab::v1::ResultService::Stub> results_;
  std::unique_ptr<scalelab::v1::AnalysisService::Stub> analysis_;
  std::unique_ptr<scalelab::v1::PredictionService::Stub> predictions_;
  std::unique_ptr<scalelab::v1::ArchiveService::Stub> archives_;
  std::unique_ptr<scalelab::v1::ClusterService::Stub> cluster_;
  std::unique_ptr<scalelab::v1::AuthService::Stub> auth_;
  std::unique_ptr<scalelab::v1::AdminService::Stub> admin_;
  std::unique_ptr<scalelab::v1::AgentService::Stub> agents_;
};

}  // namespace scalelab::client
