// The server's address and the user's token, from the command line, the environment and
// the configuration file, and the user's defaults for studies.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "study/file/study_file.h"

namespace scalelab::client {

struct ServerAddress {
  std::string text;         // as shown: "unix:PATH", "HOST:PORT" or "insecure:HOST:PORT"
  std::string target;       // as gRPC expects it
  std::string socket_path;  // empty for TCP
  std::string host, port;   // TCP
  bool encrypted = false;   // TCP with TLS
  bool operator==(const ServerAddress&) const = default;
};

struct ServerOptions {
  ServerAddress address;
  std::string token_file;  // empty for none
  std::string
      certificate;  // that the user has accepted for this server, PEM; empty: trust the system's authorities
};

// Returns the directory of the user's configuration: $XDG_CONFIG_HOME/scalelab.
std::string ConfigDirectory();
// Returns the directory of files that may be deleted: $XDG_CACHE_HOME/scalelab.
std::string CacheDirectory();

// Returns INVALID_ARGUMENT unless `text` is "unix:PATH", "HOST:PORT" or "insecure:HOST:PORT" (with an IPv6 host in brackets).
absl::StatusOr<ServerAddress> ParseServerAddress(absl::string_view text);

// Returns the first value that is set: the flag; then SCALELAB_SERVER or SCALELAB_TOKEN_FILE; then `server`
// or `token_file` in $XDG_CONFIG_HOME/scalelab/config (lines "key: value" or "key = value"; '#' starts a
// comment); then those of the machine, in scalelab/config in the directories of XDG_CONFIG_DIRS (/etc/xdg); for the
// address, finally the socket ${XDG_DATA_HOME:-~/.local/share}/scalelab/scalelab.sock.
// The certificate is that of known_servers. INVALID_ARGUMENT names the source of an invalid value.
absl::StatusOr<ServerOptions> ResolveServer(const std::string& server_flag,
                                            const std::string& token_file_flag);

// Returns the sections that the user's studies get if they do not have them: `notify` in
// $XDG_CONFIG_HOME/scalelab/config, or else in the files of the machine. Does not check the value.
// INVALID_ARGUMENT names a line that is not a setting.
absl::StatusOr<std::vector<DefaultSection>> StudyDefaults();

}  // namespace scalelab::client
