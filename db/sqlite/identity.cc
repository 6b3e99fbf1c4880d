#include "db/sqlite/identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace scalelab::db {
namespace {

std::string FileOf(const std::string& database) { return database + ".id"; }

absl::Status CannotUse(const std::string& file, int error) {
  const std::string sentence =
      absl::StrCat(file, " cannot be read or written (", std::strerror(error),
                   "); check that its folder has space and that this user may read and write there");
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(sentence)
                                            : absl::FailedPreconditionError(sentence);
}

// Returns the contents of the identity file, or "" if there is none.
absl::StatusOr<std::string> Recorded(const std::string& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) return "";
  if (fd < 0) return CannotUse(file, errno);
  char text[256];
  const ssize_t length = read(fd, text, sizeof(text));
  const int error = errno;
  close(fd);
  if (length < 0) return CannotUse(file, error);
  return std::string(absl::StripAsciiWhitespace({text, static_cast<size_t>(length)}));
}

// Creates the file atomically.
absl::Status Record(const std::string& file, const std::string& identity) {
  const std::string part = file + ".part", line = identity + "\n";
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool written = fd >= 0 && write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
                 fsync(fd) == 0 && rename(part.c_str(), file.c_str()) == 0;
  int error = errno;
  if (fd >= 0) close(fd);
  if (!written) return CannotUse(file, error);
  const std::string folder = std::filesystem::path(file).parent_path();
  const int directory = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  written = directory >= 0 && (fsync(directory) == 0 || errno == EINVAL);  // EINVAL: it cannot be synced here
  error = errno;
  if (directory >= 0) close(directory);
  return written ? absl::OkStatus() : CannotUse(file, error);
}

}  // namespace

absl::Status CheckDatabaseExists(const std::string& path) {
  const absl::StatusOr<std::string> recorded = Recorded(FileOf(path));
  if (!recorded.ok()) return recorded.status();
  if (recorded->empty()) return absl::OkStatus();
  struct stat found {};
  if (stat(path.c_str(), &found) == 0 && found.st_size > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is missing or empty, but ", FileOf(path),
                   " shows that a database existed; restore a backup, or remove ", FileOf(path),
                   " to start with an empty database"));
}

absl::Status CheckIdentity(Database& db) {
  const absl::StatusOr<std::string> identity = db.QueryText("SELECT value FROM meta WHERE name = 'identity'");
  if (!identity.ok()) return identity.status();
  const absl::StatusOr<std::string> recorded = Recorded(FileOf(db.path()));
  if (!recorded.ok()) return recorded.status();
  if (recorded->empty()) return Record(FileOf(db.path()), *identity);
  if (*recorded == *identity) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(db.path(), " is not the database that belongs here: its identity is ", *identity, ", but ",
                   FileOf(db.path()), " contains ", *recorded, "; put the right file back, or remove ",
                   FileOf(db.path()), " if you replaced the database on purpose"));
}

}  // namespace scalelab::db
