#include "files/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace scalelab {
namespace {

absl::Status LastError() {
  return errno == ENOENT ? absl::NotFoundError(strerror(errno)) : absl::UnavailableError(strerror(errno));
}

absl::Status NotRegular(mode_t mode) {
  const char* kind = S_ISDIR(mode)    ? "a directory"
                     : S_ISFIFO(mode) ? "a FIFO"
                     : S_ISLNK(mode)  ? "a symlink"
                     : S_ISSOCK(mode) ? "a socket"
                                      : "a device";
  return absl::FailedPreconditionError(absl::StrCat("is ", kind, ", not a regular file"));
}

std::string ReadPart(const std::string& path, size_t limit, bool tail) {
  const absl::StatusOr<int> fd = OpenRegularFile(path, O_RDONLY);
  if (!fd.ok()) return "";
  struct stat status {};
  off_t at = 0;
  if (tail && fstat(*fd, &status) == 0) at = std::max<off_t>(0, status.st_size - static_cast<off_t>(limit));
  std::string text(limit, '\0');
  size_t size = 0;
  while (size < limit) {
    const ssize_t got = pread(*fd, text.data() + size, limit - size, at + static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  close(*fd);
  text.resize(size);
  return text;
}

}  // namespace

absl::StatusOr<int> OpenRegularFile(const std::string& path, int flags) {
  struct stat found {};
  // Opening a device or a FIFO could already have an effect.
  if (lstat(path.c_str(), &found) != 0) return LastError();
  if (!S_ISREG(found.st_mode)) return NotRegular(found.st_mode);
  const int fd = open(path.c_str(), flags | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return LastError();
  absl::Status status;
  if (fstat(fd, &found) != 0) status = LastError();
  if (status.ok() && !S_ISREG(found.st_mode)) status = NotRegular(found.st_mode);  // replaced in the meantime
  if (status.ok()) return fd;
  close(fd);
  return status;
}

std::string ReadHead(const std::string& path, size_t limit) { return ReadPart(path, limit, false); }
std::string ReadTail(const std::string& path, size_t limit) { return ReadPart(path, limit, true); }

}  // namespace scalelab
