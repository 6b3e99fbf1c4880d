// The text that a client lets MUNGE encode for a login: the challenge of the server, and the certificate that the server has
// presented to this client.
//
//   scalelab-login-1:EXPIRES:NONCE:SIGNATURE               the challenge: decimal seconds, 32 and 64 hexadecimal digits
//   scalelab-login-1:EXPIRES:NONCE:SIGNATURE:FINGERPRINT   the text: with the SHA-256 of the certificate, 64 digits
//
// FINGERPRINT is empty on a connection that is not encrypted. It ties a credential to one server: a server that passes on the
// challenge of another server cannot use the answer there, because the client has seen another certificate.
// client/python/src/scalelab/session_token.py has the same rules.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab {

inline constexpr absl::string_view kLoginPurpose = "scalelab-login-1";

// Returns whether `text` has the form of a challenge. Does not check its signature, which only its server can.
bool IsLoginChallenge(absl::string_view text);

// Returns the text for a challenge. `fingerprint`: hexadecimal digits with or without colons, or an empty text. Returns
// FAILED_PRECONDITION if `challenge` has another form, so that no server can let a user sign a text for another program.
absl::StatusOr<std::string> LoginText(absl::string_view challenge, absl::string_view fingerprint);

}  // namespace scalelab
