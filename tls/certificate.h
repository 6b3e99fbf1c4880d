// X.509 certificates of servers, as PEM texts. A text may contain several certificates: the server's is the first.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace scalelab::tls {

// A certificate and its private key, both as PEM texts.
struct KeyPair {
  std::string certificate;
  std::string key;
};

// Makes an ECDSA P-256 key and a certificate that it signs itself. The certificate is valid for ten years, for `hosts`:
// names and IP addresses.
absl::StatusOr<KeyPair> MakeKeyPair(const std::vector<std::string>& hosts);

// Returns the certificates of a text, which may contain a key too; empty if there are none.
std::string CertificatesOf(const std::string& pem);

// Returns the SHA-256 fingerprint as `openssl x509 -fingerprint -sha256` prints it: "AB:CD:...". Returns
// INVALID_ARGUMENT if the text contains no certificate.
absl::StatusOr<std::string> Fingerprint(const std::string& certificate);

// Returns whether two fingerprints are the same. Colons, case and a prefix such as "SHA256:" do not matter.
bool SameFingerprint(const std::string& a, const std::string& b);

// Returns the first host name or IPv4 address in the certificate's subjectAltName. Returns an empty string if it has none,
// such as the certificate of an authority, which signs those of servers.
absl::StatusOr<std::string> HostOf(const std::string& certificate);

}  // namespace scalelab::tls
