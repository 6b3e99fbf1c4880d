// The certificate for TCP connections. The configuration names it, or the first start makes it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/config.h"
#include "server/data_dir.h"
#include "tls/certificate.h"

namespace scalelab::server {

struct TlsIdentity {
  std::optional<tls::KeyPair> pair;  // none if TCP is not used or not encrypted
  std::string worker_certificate;    // what workers trust, PEM; empty: the authorities of their system
  std::string address_prefix;        // of TCP addresses for clients: "insecure:" if TCP is not encrypted
};

// Logs the fingerprint. Returns INVALID_ARGUMENT if a file of the configuration cannot be used.
absl::StatusOr<TlsIdentity> PrepareTls(const ServerConfig& config, const DataDir& data_dir);

}  // namespace scalelab::server
