// Authenticates callers. Clients on the Unix socket are authenticated by the file mode (0600: the
// same account), clients on TCP by a bearer token. Workers present the secret of their allocation
// on every transport.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"

namespace scalelab::server {

// The secret of an allocation is the HMAC-SHA256 (RFC 2104) of its token under the server's key. It is
// derived rather than stored: a restarted coordinator can compute it, and the database does not contain it.
class Auth {
 public:
  // `client_token`: the bearer token of clients. `key`: the secret of this server, of any length.
  Auth(std::string client_token, std::string key)
      : client_token_(std::move(client_token)), key_(std::move(key)) {}

  // Returns OK for an authenticated client. The message of UNAUTHENTICATED explains how to present a token.
  absl::Status CheckClient(const grpc::CallbackServerContext& context) const;
  // Returns the token of the allocation whose secret the caller presents, or UNAUTHENTICATED.
  absl::StatusOr<std::string> CheckWorker(const grpc::CallbackServerContext& context) const;
  std::string SecretFor(const std::string& allocation_token) const;

 private:
  const std::string client_token_;
  const std::string key_;
};

}  // namespace scalelab::server
