#include "files/lock_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "files/regular_file.h"

namespace scalelab {
namespace {

constexpr useconds_t kBetweenTries = 10'000;  // us
constexpr int kTries = 51;                    // take half a second

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::FailedPreconditionError(absl::StrCat("cannot ", what, " ", path, ": ", strerror(errno)));
}

}  // namespace

absl::StatusOr<std::optional<LockFile>> LockFile::Take(const std::string& path, int tries) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return SystemError("open", path);
  LockFile lock(fd);
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return SystemError("lock", path);
    if (--tries == 0) return std::nullopt;
    usleep(kBetweenTries);
  }
  return lock;
}

absl::StatusOr<std::optional<LockFile>> LockFile::Take(const std::string& path) { return Take(path, 1); }

absl::StatusOr<std::optional<LockFile>> LockFile::TakeWithProcessId(const std::string& path) {
  absl::StatusOr<std::optional<LockFile>> lock = Take(path, kTries);
  if (!lock.ok() || !lock->has_value()) return lock;
  const int fd = (*lock)->fd_;
  const std::string text = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 || pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    return SystemError("write", path);
  return lock;
}

// Closes only its own descriptor: LOCK_UN would release the lock of a forked child too.
LockFile::~LockFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<LockHolder> FindLockHolder(const std::string& path) {
  LockHolder holder;
  const absl::StatusOr<int> fd = OpenRegularFile(path, O_RDONLY);
  if (absl::IsNotFound(fd.status())) return holder;
  if (!fd.ok())
    return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", fd.status().message()));
  holder.held = flock(*fd, LOCK_SH | LOCK_NB) != 0;
  const int error = errno;
  char text[32] = {};
  const ssize_t length = pread(*fd, text, sizeof text - 1, 0);
  close(*fd);  // releases the lock
  if (holder.held && error != EWOULDBLOCK)
    return absl::UnavailableError(absl::StrCat("cannot lock ", path, ": ", strerror(error)));
  int pid = 0;
  if (length > 0 && absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &pid) && pid > 0) holder.pid = pid;
  return holder;
}

}  // namespace scalelab
