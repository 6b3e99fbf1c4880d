// Parses the addresses that the coordinator serves on, and removes stale Unix sockets.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace scalelab::server {

struct Address {
  std::string unix_path;  // absolute; empty for TCP
  std::string host;       // TCP: a name, an IPv4 address, or an IPv6 address in brackets
  int port = 0;           // TCP; 0 lets the system choose

  std::string text() const;  // "unix:/path" or "host:port", the form that gRPC uses
};

// Parses "unix:PATH" (a relative path is resolved against the working directory) or "HOST:PORT". Returns
// INVALID_ARGUMENT with a message that names the mistake and the correct form. A Unix path may have at
// most 107 bytes.
absl::StatusOr<Address> ParseAddress(const std::string& text);

// Removes the socket that an earlier server left at `path`. Returns OK when there is no file. Returns
// FAILED_PRECONDITION if the file is no socket, or a program listens on it. The caller must hold the lock of
// the server's directory: without the lock, another server might start between the check and the removal.
absl::Status RemoveStaleSocket(const std::string& path);

}  // namespace scalelab::server
