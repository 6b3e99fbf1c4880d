// Where the server is and how to be let in: from the command line, the environment and the configuration
// file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab::client {

struct ServerAddress {
  std::string text;         // as shown: "unix:PATH" or "HOST:PORT"
  std::string target;       // as gRPC wants it
  std::string socket_path;  // empty for TCP
  bool operator==(const ServerAddress&) const = default;
};

struct ServerOptions {
  ServerAddress address;
  std::string token_file;  // empty when there is none
};

// INVALID_ARGUMENT for what is neither "unix:PATH" nor "HOST:PORT" (an IPv6 host in brackets).
absl::StatusOr<ServerAddress> ParseServerAddress(absl::string_view text);

// The first that is set of: the flag; SCALELAB_SERVER and SCALELAB_TOKEN_FILE; `server` and `token_file` of
// $XDG_CONFIG_HOME/scalelab/config (lines "key: value" or "key = value", '#' starts a comment); the socket
// ${XDG_DATA_HOME:-~/.local/share}/scalelab/scalelab.sock. INVALID_ARGUMENT names the place of a wrong value.
absl::StatusOr<ServerOptions> ResolveServer(const std::string& server_flag,
                                            const std::string& token_file_flag);

}  // namespace scalelab::client
