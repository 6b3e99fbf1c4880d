// The certificates of servers that the user has accepted, in $XDG_CONFIG_HOME/scalelab/known_servers. Each line has the
// address and the certificate: "HOST:PORT BASE64", where BASE64 is the PEM text.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session/server_options.h"

namespace scalelab::client {

// Returns the path of known_servers.
std::string KnownServersFile();

// Returns the accepted certificate of a server as PEM; an empty string if there is none. Returns INVALID_ARGUMENT if the
// file has a line of another form.
absl::StatusOr<std::string> KnownCertificate(const std::string& address);

// Stores the certificate in place of an older one.
absl::Status AcceptCertificate(const std::string& address, const std::string& certificate);

// Finds out why no encrypted connection to the server is possible: a certificate that is unknown or has changed, or a server
// without TLS. Returns OK if there is no such reason, for example because nobody listens. Connects to the server.
absl::Status WhyNotTrusted(const ServerOptions& server, absl::Duration timeout);

}  // namespace scalelab::client
