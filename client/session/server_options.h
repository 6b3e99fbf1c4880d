// The server's address and the user's token, from the command line, the environment and
// the configuration file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab::client {

struct ServerAddress {
  std::string text;         // as shown: "unix:PATH" or "HOST:PORT"
  std::string target;       // as gRPC expects it
  std::string socket_path;  // empty for TCP
  bool operator==(const ServerAddress&) const = default;
};

struct ServerOptions {
  ServerAddress address;
  std::string token_file;  // empty for none
};

// Returns INVALID_ARGUMENT unless `text` is "unix:PATH" or "HOST:PORT" (with an IPv6 host in brackets).
absl::StatusOr<ServerAddress> ParseServerAddress(absl::string_view text);

// Returns the first value that is set: the flag; then SCALELAB_SERVER or SCALELAB_TOKEN_FILE; then `server`
// or `token_file` in $XDG_CONFIG_HOME/scalelab/config (lines "key: value" or "key = value"; '#' starts a
// comment); for the address, finally the socket ${XDG_DATA_HOME:-~/.local/share}/scalelab/scalelab.sock.
// INVALID_ARGUMENT names the source of an invalid value.
absl::StatusOr<ServerOptions> ResolveServer(const std::string& server_flag,
                                            const std::string& token_file_flag);

}  // namespace scalelab::client
