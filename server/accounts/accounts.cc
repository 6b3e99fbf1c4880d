#include "server/accounts/accounts.h"

#include <pwd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/status/status.h"

namespace scalelab::server {

// getpwnam(3) lists these numbers.
bool MeansNoEntry(int error) {
  return error == 0 || error == ENOENT || error == ESRCH || error == EBADF || error == EPERM;
}

absl::StatusOr<std::optional<uid_t>> LookUpUid(const std::string& user) {
  passwd entry{}, *found = nullptr;
  std::vector<char> buffer(16 << 10);
  const int error = getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return found->pw_uid;
  if (MeansNoEntry(error)) return std::nullopt;
  return absl::UnavailableError(std::strerror(error));
}

}  // namespace scalelab::server
