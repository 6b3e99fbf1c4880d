// Random secrets, hashes, signatures, and comparison in constant time.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab::server {

// Returns 256 random bits in hexadecimal.
absl::StatusOr<std::string> RandomSecret();
// Returns the SHA-256 of `text` in hexadecimal.
std::string Sha256(absl::string_view text);
// Returns the HMAC-SHA256 (RFC 2104) of `text` in hexadecimal. `key` has any length.
std::string Hmac(absl::string_view key, absl::string_view text);
// Returns whether the texts are equal and not empty. The time depends on their lengths only.
bool SameSecret(absl::string_view a, absl::string_view b);

}  // namespace scalelab::server
