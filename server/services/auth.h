// Who may call. Over a Unix socket the file's mode decides (0600: the same account), over TCP a bearer token
// does: never open. Workers prove their allocation on every transport.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"

namespace scalelab::server {

// Secrets of allocations are derived, not stored: HMAC-SHA256 (RFC 2104) of the allocation's token under the
// server's key, so that a restarted coordinator knows them and the database never holds them.
class Auth {
 public:
  // `client_token`: what clients present. `key`: secret of this server, any length.
  Auth(std::string client_token, std::string key)
      : client_token_(std::move(client_token)), key_(std::move(key)) {}

  // OK for users' calls; UNAUTHENTICATED says how to present a token.
  absl::Status CheckClient(const grpc::CallbackServerContext& context) const;
  // Token of the allocation that the caller proves to be part of.
  absl::StatusOr<std::string> CheckWorker(const grpc::CallbackServerContext& context) const;
  std::string SecretFor(const std::string& allocation_token) const;

 private:
  const std::string client_token_;
  const std::string key_;
};

}  // namespace scalelab::server
