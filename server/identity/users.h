// The accounts of this machine, and their roles.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/accounts/lookup_cache.h"
#include "server/identity/identity.h"
#include "server/time/clock.h"

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

// The user directory of this machine, which may be a service like LDAP that fails, or answers slowly or not
// at all. Tests replace its functions. They block, and return an error if the directory cannot answer now.
struct UserDirectory {
  // Returns the name of an account, or "uid-1234" if it has none. Null: from the accounts of this machine.
  std::function<absl::StatusOr<std::string>(uid_t uid)> name_of = nullptr;
  // Returns the groups of a user. Null: from the accounts of this machine.
  std::function<absl::StatusOr<std::vector<std::string>>(const std::string& user)> groups_of = nullptr;
  // Returns the time for the age of answers.
  std::function<absl::Duration()> now = [] { return Clock::System().Steady(); };
  // Callers wait for a lookup until it has taken this time.
  absl::Duration patience = absl::Seconds(2);
};

// Keeps the answers of the user directory for some minutes, and also uses older ones while the directory does
// not answer. Thread-safe.
class Users {
 public:
  // Looks up the account of this process, for which it waits up to 30 seconds.
  explicit Users(const RoleLists& lists, UserDirectory directory = {});

  // Returns UNAVAILABLE if the constructor could not look up the account of this process. RoleOf must not be
  // called then.
  const absl::Status& status() const { return status_; }
  // Returns the name of an account, or "uid-1234" if it has none. Blocks while the name is looked up.
  // UNAVAILABLE if the directory does not answer and has never given the name.
  absl::StatusOr<std::string> NameOf(uid_t uid);
  // Returns the role. PERMISSION_DENIED if the user has none. UNAVAILABLE if the groups of the user matter,
  // and the directory does not answer and has never given them.
  absl::StatusOr<Role> RoleOf(const std::string& user);
  // Replaces the lists. Calls that begin afterwards have the new roles.
  void SetRoles(const RoleLists& lists) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the name of the account of this process.
  const std::string& service() const { return service_; }

 private:
  // Returns whether the role of the user depends on the groups of the user.
  bool NeedsGroups(const std::string& user) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<Role> RoleWith(const std::string& user, const std::vector<std::string>& groups) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Duration patience_;
  LookupCache<uid_t, std::string> names_;
  LookupCache<std::string, std::vector<std::string>> groups_;
  absl::Status status_;
  std::string service_, root_;
  mutable absl::Mutex mutex_;
  RoleLists lists_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace scalelab::server
