// Gets the certificate that a server presents.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace scalelab::tls {

struct Presented {
  std::string certificate;  // PEM; the server's own, without those of authorities
  bool trusted = false;     // whether an authority of the system has signed it for this host
};

// Connects to `host` (a name, an IPv4 address, or an IPv6 address with or without brackets), makes a handshake and
// disconnects. Sends nothing else. Returns UNAVAILABLE if nobody listens, FAILED_PRECONDITION if the server does not use
// TLS. Blocks for at most about `timeout` for each address of the host.
absl::StatusOr<Presented> FetchCertificate(const std::string& host, const std::string& port,
                                           absl::Duration timeout);

}  // namespace scalelab::tls
