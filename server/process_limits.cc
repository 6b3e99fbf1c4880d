#include "server/process_limits.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace scalelab::server {
namespace {

constexpr rlim_t kWanted = 65'536;
constexpr rlim_t kNeeded = 128;
constexpr int kHeaps = 4;

}  // namespace

absl::StatusOr<int> RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return absl::InternalError(absl::StrCat("cannot read the limit of open files: ", std::strerror(errno)));
  const rlim_t goal = std::min(limit.rlim_max, kWanted);
  if (limit.rlim_cur < goal) {
    rlimit raised = limit;
    raised.rlim_cur = goal;
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  if (limit.rlim_cur < kNeeded) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this process may open ", limit.rlim_cur, " files, and scalelabd needs at least ", kNeeded,
        "; raise the limit, for example with `ulimit -n 4096` or LimitNOFILE= of the systemd unit"));
  }
  return static_cast<int>(std::min(limit.rlim_cur, kWanted));
}

void LimitHeaps() { mallopt(M_ARENA_MAX, kHeaps); }

}  // namespace scalelab::server
