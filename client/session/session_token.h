// Session tokens, which a server of the same cluster gives in exchange for a MUNGE credential. They are kept in
// $XDG_RUNTIME_DIR/scalelab, or in $XDG_CACHE_HOME/scalelab, one file of mode 0600 for each server.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"

namespace scalelab::client {

struct SessionToken {
  std::string secret;  // empty for none
  absl::Time expires = absl::InfinitePast();
  // Returns whether the token will be valid for some time.
  bool usable(absl::Time now) const { return !secret.empty() && expires - now > absl::Seconds(30); }
};

// Returns the stored token of a server ("HOST:PORT"), or nothing if there is no usable token.
SessionToken StoredSession(const std::string& server, absl::Time now);

// Gets a new token from the server and stores it. Blocks until `deadline` at most, and for the time that MUNGE takes.
// Errors: those of MUNGE and of the server.
absl::StatusOr<SessionToken> NewSession(const std::shared_ptr<grpc::Channel>& channel,
                                        const std::string& server, absl::Time deadline);

}  // namespace scalelab::client
