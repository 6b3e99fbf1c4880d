// The account of a user under which the doctor submits its test job.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "server/doctor/facts.h"

namespace scalelab::server::doctor {

// Returns whether `user` is a user of the cluster: neither root nor the owner of the data directory.
bool IsClusterUser(const DirectoryFacts& data, uid_t user);

// Gives this process the account `user`, with its groups and its HOME, until the process ends. Does nothing if the
// process has that account. Returns NOT_FOUND if there is no such account, INVALID_ARGUMENT for root, UNAVAILABLE if
// accounts cannot be looked up, and PERMISSION_DENIED if this process may not change its account.
absl::Status BecomeUser(const std::string& user);

}  // namespace scalelab::server::doctor
