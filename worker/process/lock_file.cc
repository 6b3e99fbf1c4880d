#include "worker/process/lock_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace scalelab::worker {

absl::StatusOr<int> LockFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("Cannot open lock file '", path, "'"));
  // Another process may hold the lock for an instant to test it, so one failure is not enough to give up.
  int taken = flock(fd, LOCK_EX | LOCK_NB);
  for (int again = 0; taken != 0 && errno == EWOULDBLOCK && again < 50; ++again) {
    usleep(10'000);
    taken = flock(fd, LOCK_EX | LOCK_NB);
  }
  if (taken != 0) {
    const int error = errno;
    close(fd);
    if (error == EWOULDBLOCK) {
      return absl::FailedPreconditionError(
          absl::StrCat("Lock file '", path,
                       "' is held: another worker runs, or its processes are still being ended; try again "
                       "when they are gone."));
    }
    return absl::ErrnoToStatus(error, absl::StrCat("Cannot lock '", path, "'"));
  }
  const std::string text = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 || pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    const int error = errno;
    close(fd);
    return absl::ErrnoToStatus(error, absl::StrCat("Cannot write lock file '", path, "'"));
  }
  return fd;
}

}  // namespace scalelab::worker
