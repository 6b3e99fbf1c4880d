// Addresses the coordinator serves on, and what can be wrong with a Unix socket's path.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace scalelab::server {

struct Address {
  std::string unix_path;  // absolute; empty for TCP
  std::string host;       // TCP: a name, an IPv4 address, or an IPv6 address in brackets
  int port = 0;           // TCP; 0 lets the system choose

  std::string text() const;  // "unix:/path" or "host:port", as gRPC writes it
};

// Reads "unix:PATH" (a relative path is taken from the working directory) or "HOST:PORT". INVALID_ARGUMENT: a
// sentence that says what is wrong and what to try; a Unix path may have 107 bytes.
absl::StatusOr<Address> ParseAddress(const std::string& text);

// Removes the socket that a server which is gone left at `path`; OK when nothing is there.
// FAILED_PRECONDITION: something that is no socket is there, or a program answers on it. Call it only while
// holding the lock of the server's directory: between the check and the removal another server might start.
absl::Status RemoveStaleSocket(const std::string& path);

}  // namespace scalelab::server
