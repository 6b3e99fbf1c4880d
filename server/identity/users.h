// The accounts of this machine, and their roles.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/identity/identity.h"

namespace scalelab::server {

// The accounts that have a role: names of users, "@group", or "*" for everybody. The highest role
// that matches counts.
struct RoleLists {
  // The account of the service, and root, always are admins: they can change its files.
  std::vector<std::string> admins;
  std::vector<std::string> users = {"*"};
  std::vector<std::string> viewers;
};

// Returns an error unless `entry` may be part of a list.
absl::Status CheckRoleEntry(const std::string& entry);

// Uses cached answers where possible, because directory services such as LDAP may block for long. Queries
// them again when an answer is old. Thread-safe.
class Users {
 public:
  // Returns the groups of a user. Blocks. Tests replace it.
  using GroupsOf = std::vector<std::string> (*)(const std::string& user);

  explicit Users(const RoleLists& lists);
  Users(const RoleLists& lists, GroupsOf groups_of);

  // Returns the name of an account, or "uid-1234" if it has none. Blocks when the name is not known.
  std::string NameOf(uid_t uid);
  // Returns the role. PERMISSION_DENIED if the user has none, UNAVAILABLE if the groups of the user are not
  // known within `patience`.
  absl::StatusOr<Role> RoleOf(const std::string& user, absl::Duration patience = absl::Seconds(2));
  // Replaces the lists. Calls that begin afterwards have the new roles.
  void SetRoles(const RoleLists& lists);
  // Returns the name of the account of this process.
  const std::string& service() const { return service_; }

 private:
  struct Shared;  // outlives this object while a directory service blocks a thread
  const std::shared_ptr<Shared> shared_;
  std::string service_;
};

}  // namespace scalelab::server
