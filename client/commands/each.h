// A loop for commands that act on several studies or runs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/session/session.h"

namespace scalelab::client {

// Calls `act` for every name. Continues after an error that concerns only one name; stops when the server is
// unavailable or rejects the credentials. Prints every error except the last, which it returns.
inline absl::StatusOr<ExitCode> ForEach(Session& session, const std::vector<std::string>& names,
                                        const std::function<absl::Status(const std::string&)>& act) {
  absl::Status last;
  for (const std::string& name : names) {
    const absl::Status status = act(name);
    if (status.ok()) continue;
    if (!last.ok()) session.Say(last.message());
    last = status;
    if (absl::IsUnavailable(status) || absl::IsUnauthenticated(status)) break;
  }
  if (!last.ok()) return last;
  return ExitCode::kOk;
}

}  // namespace scalelab::client
