#include "server/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace scalelab::server {
namespace {

absl::Status CannotUse(const std::string& path, absl::string_view what) {
  return absl::PermissionDeniedError(absl::StrCat("cannot use ", path, " as data directory: ", what,
                                                  "; set --data to a directory that you may write to"));
}

// Creates `path` and its parents, accessible to the owner only.
absl::Status MakeDirectories(const std::filesystem::path& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) == 0) {
    if (S_ISDIR(found.st_mode)) return absl::OkStatus();
    return CannotUse(path.string(), "it is a file");
  }
  if (errno == ENOTDIR) return CannotUse(path.string(), "a parent of it is a file");
  if (errno != ENOENT) return CannotUse(path.string(), std::strerror(errno));
  if (path.has_parent_path() && path.parent_path() != path) {
    if (absl::Status status = MakeDirectories(path.parent_path()); !status.ok()) return status;
  }
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return CannotUse(path.string(), absl::StrCat("it cannot be created: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

// Reads at most `size` bytes from the start of a file.
std::string ReadSmall(int fd, size_t size) {
  std::string text(size, '\0');
  const ssize_t length = pread(fd, text.data(), size, 0);
  text.resize(length > 0 ? length : 0);
  return text;
}

// Takes the lock and returns its file descriptor.
absl::StatusOr<int> Lock(const std::string& directory) {
  const std::string file = directory + "/scalelabd.lock";
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0)
    return CannotUse(directory,
                     absl::StrCat("scalelabd.lock cannot be opened for writing: ", std::strerror(errno)));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    std::string pid(absl::StripAsciiWhitespace(ReadSmall(fd, 32)));
    close(fd);
    if (error != EWOULDBLOCK)
      return CannotUse(directory, absl::StrCat("scalelabd.lock cannot be locked: ", std::strerror(error)));
    if (pid.empty()) pid = "unknown";
    return absl::FailedPreconditionError(absl::StrCat("another scalelabd (pid ", pid, ") uses ", directory,
                                                      "; stop it or set another --data"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    const int error = errno;
    close(fd);
    return CannotUse(directory, absl::StrCat("scalelabd.lock cannot be written: ", std::strerror(error)));
  }
  return fd;
}

constexpr size_t kTokenBytes = 32;
constexpr size_t kSecretBytes = 64 << 10;  // of a file, at most

// Returns random bytes in hexadecimal.
absl::StatusOr<std::string> RandomSecret() {
  std::array<char, kTokenBytes> random;
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    return absl::InternalError(absl::StrCat("cannot get random bytes: ", std::strerror(errno)));
  return absl::BytesToHexString(absl::string_view(random.data(), random.size()));
}

}  // namespace

absl::StatusOr<DataDir> DataDir::Open(const std::string& path) {
  if (path.empty() || path[0] != '/')
    return absl::InvalidArgumentError(absl::StrCat("data directory '", path, "' is not an absolute path"));
  if (absl::Status status = MakeDirectories(path); !status.ok()) return status;
  absl::StatusOr<int> lock = Lock(path);
  if (!lock.ok()) return lock.status();
  DataDir directory(path, *lock);  // releases the lock on every return from here on
  absl::StatusOr<std::string> token = directory.Secret("client.token", RandomSecret);
  if (!token.ok()) return token.status();
  directory.client_token_ = *std::move(token);
  absl::StatusOr<std::string> key = directory.Secret("server.key", RandomSecret);
  if (!key.ok()) return key.status();
  directory.server_key_ = *std::move(key);
  if (absl::Status status = MakeDirectories(directory.allocations()); !status.ok()) return status;
  return directory;
}

DataDir::DataDir(DataDir&& other) noexcept
    : path_(std::move(other.path_)),
      lock_(std::exchange(other.lock_, -1)),
      client_token_(std::move(other.client_token_)),
      server_key_(std::move(other.server_key_)) {}

DataDir::~DataDir() {
  if (lock_ >= 0) close(lock_);
}

// The file is renamed into place when it is complete, so that a crash leaves no partial secret.
absl::StatusOr<std::string> DataDir::Secret(const std::string& name,
                                            const std::function<absl::StatusOr<std::string>()>& make) const {
  const std::string file = path_ + "/" + name, part = file + ".part";
  if (int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC); fd >= 0) {
    std::string token(absl::StripAsciiWhitespace(ReadSmall(fd, kSecretBytes)));
    struct stat found {};
    const bool open_to_others = fstat(fd, &found) == 0 && (found.st_mode & 077) != 0;
    close(fd);
    if (open_to_others) {
      return absl::FailedPreconditionError(
          absl::StrCat(file, " is readable by other users; chmod 600 it, or delete it to get a new one"));
    }
    if (token.size() < kTokenBytes) {
      return absl::FailedPreconditionError(
          absl::StrCat(file, " contains no secret; delete it, and the next start creates a new one"));
    }
    return token;
  } else if (errno != ENOENT) {
    return CannotUse(path_, absl::StrCat(name, " cannot be read: ", std::strerror(errno)));
  }
  const absl::StatusOr<std::string> token = make();
  if (!token.ok()) return token.status();
  const std::string line = *token + "\n";
  unlink(part.c_str());  // left over from a crash
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  bool written =
      fd >= 0 && write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size()) && fsync(fd) == 0;
  written = written && rename(part.c_str(), file.c_str()) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!written) return CannotUse(path_, absl::StrCat(name, " cannot be written: ", std::strerror(error)));
  return token;
}

}  // namespace scalelab::server
