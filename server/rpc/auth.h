// Authenticates callers. The account at the other end of the Unix socket is known; on TCP, and for a reverse proxy on the
// socket, clients present a bearer token. Workers present the secret of their allocation on every transport.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "server/identity/authenticator.h"
#include "server/rpc/client_call.h"
#include "server/rpc/connections.h"

namespace scalelab::server {

// The secrets of this server. The secret of an allocation is the HMAC-SHA256 of its token under the server's key. It is
// derived rather than stored: a restarted coordinator can compute it, and the database does not contain it.
class Auth {
 public:
  // `client_token`: the bearer token of the file client.token. `key`: the secret of this server, of any length.
  Auth(std::string client_token, std::string key)
      : client_token_(std::move(client_token)), key_(std::move(key)) {}

  // Returns the token of the allocation whose secret the caller presents, or UNAUTHENTICATED.
  absl::StatusOr<std::string> CheckWorker(const grpc::ServerContextBase& context) const;
  std::string SecretFor(const std::string& allocation_token) const;
  const std::string& client_token() const { return client_token_; }
  const std::string& key() const { return key_; }

 private:
  const std::string client_token_;
  const std::string key_;
};

// Authenticates the callers of one transport, and records which connections are authenticated.
class Access {
 public:
  // `local`: the connections come from the Unix socket.
  Access(const Auth& auth, Authenticator& identities, Connections& connections, bool local)
      : auth_(auth), identities_(identities), connections_(connections), local_(local) {}

  // Returns the identity of the caller. A bearer token takes precedence over the account on the Unix socket.
  // Errors: UNAUTHENTICATED with a message that explains how to present a token, PERMISSION_DENIED if the
  // user has no role, UNAVAILABLE.
  absl::StatusOr<Identity> CheckClient(const grpc::ServerContextBase& context) const;
  absl::StatusOr<std::string> CheckWorker(const grpc::ServerContextBase& context) const;
  // Returns a name of the caller for limits: its address, also behind a proxy; its account; its connection if that is
  // local; or its login to the dashboard.
  std::string PeerOf(const grpc::ServerContextBase& context) const;
  // Returns the IP address of the caller, or "local".
  std::string AddressOf(const grpc::ServerContextBase& context) const;
  // Adds an entry to the audit log at the end of a call that changed something or was refused.
  void Audit(const ClientCall& call, const absl::Status& status) const;
  // Adds an entry for a call whose caller CheckClient has refused.
  void AuditUnknown(const grpc::ServerContextBase& context, const std::string& action,
                    const absl::Status& status) const;
  Authenticator& identities() const { return identities_; }
  bool local() const { return local_; }

 private:
  const Auth& auth_;
  Authenticator& identities_;
  Connections& connections_;
  const bool local_;
};

}  // namespace scalelab::server
