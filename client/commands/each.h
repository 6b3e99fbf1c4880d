// For commands that do one thing to each of several studies or runs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/session/session.h"

namespace scalelab::client {

// Does `act` to every one of `names`, going on after an error that concerns only that one. Every error but
// the last is said; the last is returned.
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
