#include "server/doctor/account.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace scalelab::server::doctor {

bool IsClusterUser(const DirectoryFacts& data, uid_t user) {
  return user != 0 && data.existing == data.path && data.owner != user;
}

absl::Status BecomeUser(const std::string& user) {
  passwd entry{}, *found = nullptr;
  std::vector<char> buffer(16 << 10);
  const int error = getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr && error != 0 && error != ENOENT && error != ESRCH) {
    return absl::UnavailableError(
        absl::StrCat("cannot look up the account ", user, ": ", std::strerror(error)));
  }
  if (found == nullptr) return absl::NotFoundError(absl::StrCat("this machine has no account ", user));
  if (found->pw_uid == 0)
    return absl::InvalidArgumentError("root is no user of the cluster; name another account");
  if (found->pw_uid == geteuid()) return absl::OkStatus();
  if (geteuid() != 0)
    return absl::PermissionDeniedError(absl::StrCat("only root may submit a job under the account ", user));
  if (initgroups(user.c_str(), found->pw_gid) != 0 || setgid(found->pw_gid) != 0 ||
      setuid(found->pw_uid) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot change to the account ", user, ": ", std::strerror(errno)));
  }
  setenv("HOME", found->pw_dir, 1);
  setenv("USER", user.c_str(), 1);
  setenv("LOGNAME", user.c_str(), 1);
  unsetenv("SLURM_JWT");  // a credential of the earlier account
  // sbatch starts the job in the current directory, which the user may not be allowed to enter.
  if (chdir("/") != 0)
    return absl::PermissionDeniedError(absl::StrCat("cannot enter /: ", std::strerror(errno)));
  return absl::OkStatus();
}

}  // namespace scalelab::server::doctor
