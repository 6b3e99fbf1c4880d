// The identity of a caller: the result of authentication, and the only source of owner names and permissions.
#pragma once

#include <cstdint>
#include <string>

namespace scalelab::server {

// What a user may do; each role includes those before it.
enum class Role { kViewer, kUser, kAdmin };

// Limits a credential to a part of what its user may do; each scope includes those before it.
enum class Scope { kRead, kSubmit, kAdmin };

struct Identity {
  std::string user;               // name of the Unix account, or of the token's user
  Role role = Role::kViewer;      // from the configuration
  Scope scope = Scope::kRead;     // of the credential
  std::string source;             // "unix socket", "munge" or "token NUMBER"
  std::string address = "local";  // IP address of the caller; "local" for the Unix socket
  int64_t expires = 0;  // when the credential expires, in microseconds since the Unix epoch; 0: never

  // Returns whether both the user and the credential allow it.
  bool MaySubmit() const { return role >= Role::kUser && scope >= Scope::kSubmit; }
  bool IsAdmin() const { return role == Role::kAdmin && scope == Scope::kAdmin; }
};

}  // namespace scalelab::server
