#include "db/sqlite/identity.h"

#include <cerrno>
#include <cstdint>
#include <cstring>

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
absl::StatusOr<std::string> Recorded(FileSystem& files, const std::string& file) {
  std::string text;
  const int error = files.Read(file, 256, text);
  if (error == ENOENT) return "";
  if (error != 0) return CannotUse(file, error);
  return std::string(absl::StripAsciiWhitespace(text));
}

}  // namespace

absl::Status CheckDatabaseExists(const std::string& path, FileSystem& files) {
  const absl::StatusOr<std::string> recorded = Recorded(files, FileOf(path));
  if (!recorded.ok()) return recorded.status();
  if (recorded->empty()) return absl::OkStatus();
  int64_t size = 0;
  if (files.Size(path, size) == 0 && size > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is missing or empty, but ", FileOf(path),
                   " shows that a database existed; restore a backup, or remove ", FileOf(path),
                   " to start with an empty database"));
}

absl::Status CheckIdentity(Database& db, FileSystem& files) {
  const absl::StatusOr<std::string> identity = db.QueryText("SELECT value FROM meta WHERE name = 'identity'");
  if (!identity.ok()) return identity.status();
  const absl::StatusOr<std::string> recorded = Recorded(files, FileOf(db.path()));
  if (!recorded.ok()) return recorded.status();
  if (recorded->empty()) {
    const FileFailure failure = WriteDurably(files, FileOf(db.path()), absl::StrCat(*identity, "\n"));
    return failure.error == 0 ? absl::OkStatus() : CannotUse(FileOf(db.path()), failure.error);
  }
  if (*recorded == *identity) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(db.path(), " is not the database that belongs here: its identity is ", *identity, ", but ",
                   FileOf(db.path()), " contains ", *recorded, "; put the right file back, or remove ",
                   FileOf(db.path()), " if you replaced the database on purpose"));
}

}  // namespace scalelab::db
