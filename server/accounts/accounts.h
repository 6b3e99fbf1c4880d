// The accounts of this machine, which a directory service such as LDAP may keep.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace scalelab::server {

// Returns whether this result of getpwnam_r, getpwuid_r or getgrgid_r means that there is no such entry. Others
// come from a directory service that does not answer.
bool MeansNoEntry(int error);

// Returns the uid of an account, or nothing if there is no such account. UNAVAILABLE if this cannot be found out
// now. Blocks.
absl::StatusOr<std::optional<uid_t>> LookUpUid(const std::string& user);

}  // namespace scalelab::server
