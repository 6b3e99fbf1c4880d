// Lock files. At most one process holds the lock of a file. The kernel releases it when that process ends.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace scalelab {

// An exclusive lock (flock) that this process holds until the object is destroyed. A forked child shares the
// lock, which is then held until both processes have destroyed their objects or ended. A program that a
// process executes does not get it.
class LockFile {
 public:
  // Opens the file, or creates it accessible to the owner only, and takes its lock. Does not follow a
  // symlink. Returns nothing if the lock is held. Returns FAILED_PRECONDITION with the path and the text of
  // errno if a system call failed.
  static absl::StatusOr<std::optional<LockFile>> Take(const std::string& path);
  // Does the same, and replaces the content of the file by this process's id and a newline, for
  // FindLockHolder. Tries for half a second to take the lock, because FindLockHolder holds it for an instant.
  static absl::StatusOr<std::optional<LockFile>> TakeWithProcessId(const std::string& path);

  LockFile(LockFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  LockFile& operator=(LockFile&&) = delete;
  ~LockFile();  // the file stays

 private:
  explicit LockFile(int fd) : fd_(fd) {}
  static absl::StatusOr<std::optional<LockFile>> Take(const std::string& path, int tries);

  int fd_;
};

// The holder of a lock that was taken with TakeWithProcessId.
struct LockHolder {
  bool held = false;
  pid_t pid = 0;  // as written in the file, by a process that may have ended; 0: none
};
// Returns whether a process holds the lock, by taking a shared lock for an instant. Other calls at the same
// time do not count as holders. If the file does not exist, no process holds it. Returns UNAVAILABLE if the
// file cannot be opened or locked, or is no regular file.
absl::StatusOr<LockHolder> FindLockHolder(const std::string& path);

}  // namespace scalelab
