// Authenticates callers. Clients on the Unix socket are authenticated by the file mode (0600: the
// same account), clients on TCP by a bearer token. Workers present the secret of their allocation
// on every transport.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "server/services/connections.h"

namespace scalelab::server {

// The secret of an allocation is the HMAC-SHA256 (RFC 2104) of its token under the server's key. It is
// derived rather than stored: a restarted coordinator can compute it, and the database does not contain it.
class Auth {
 public:
  // `client_token`: the bearer token of clients. `key`: the secret of this server, of any length.
  Auth(std::string client_token, std::string key)
      : client_token_(std::move(client_token)), key_(std::move(key)) {}

  // Returns OK if the caller presents the token of clients. The message of UNAUTHENTICATED explains how to
  // present it.
  absl::Status CheckToken(const grpc::ServerContextBase& context) const;
  // Returns the token of the allocation whose secret the caller presents, or UNAUTHENTICATED.
  absl::StatusOr<std::string> CheckWorker(const grpc::ServerContextBase& context) const;
  std::string SecretFor(const std::string& allocation_token) const;

 private:
  const std::string client_token_;
  const std::string key_;
};

// Authenticates the callers of one transport, and records which connections are authenticated.
class Access {
 public:
  // `local`: the connections come from the Unix socket.
  Access(const Auth& auth, Connections& connections, bool local)
      : auth_(auth), connections_(connections), local_(local) {}

  // As CheckToken; every client of the Unix socket is authenticated.
  absl::Status CheckClient(const grpc::ServerContextBase& context) const;
  absl::StatusOr<std::string> CheckWorker(const grpc::ServerContextBase& context) const;
  // Returns a name of the caller for limits: its address, or its connection if that is local.
  std::string PeerOf(const grpc::ServerContextBase& context) const;
  bool local() const { return local_; }

 private:
  const Auth& auth_;
  Connections& connections_;
  const bool local_;
};

}  // namespace scalelab::server
