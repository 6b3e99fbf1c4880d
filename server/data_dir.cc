#include "server/data_dir.h"

#include <sys/random.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
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

absl::StatusOr<LockFile> Lock(const std::string& directory) {
  const std::string file = directory + "/scalelabd.lock";
  absl::StatusOr<std::optional<LockFile>> lock = LockFile::TakeWithProcessId(file);
  if (!lock.ok()) return CannotUse(directory, lock.status().message());
  if (lock->has_value()) return **std::move(lock);
  const absl::StatusOr<LockHolder> holder = FindLockHolder(file);
  const bool known = holder.ok() && holder->pid != 0;
  return absl::FailedPreconditionError(absl::StrCat("another scalelabd (pid ",
                                                    known ? absl::StrCat(holder->pid) : "unknown", ") uses ",
                                                    directory, "; stop it or set another --data"));
}

constexpr size_t kTokenBytes = 32;
constexpr size_t kSecretBytes = 64 << 10;  // maximum size of a file

// Returns random bytes in hexadecimal.
absl::StatusOr<std::string> RandomSecret() {
  std::array<char, kTokenBytes> random;
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    return absl::InternalError(absl::StrCat("cannot get random bytes: ", std::strerror(errno)));
  return absl::BytesToHexString(absl::string_view(random.data(), random.size()));
}

}  // namespace

absl::StatusOr<DataDir> DataDir::Open(const std::string& path, FileSystem* files) {
  if (path.empty() || path[0] != '/')
    return absl::InvalidArgumentError(absl::StrCat("data directory '", path, "' is not an absolute path"));
  if (absl::Status status = MakeDirectories(path); !status.ok()) return status;
  absl::StatusOr<LockFile> lock = Lock(path);
  if (!lock.ok()) return lock.status();
  // From here on, its destructor releases the lock at every return.
  DataDir directory(path, *std::move(lock), files == nullptr ? SystemFiles() : *files);
  absl::StatusOr<std::string> token = directory.Secret("client.token", RandomSecret);
  if (!token.ok()) return token.status();
  directory.client_token_ = *std::move(token);
  absl::StatusOr<std::string> key = directory.Secret("server.key", RandomSecret);
  if (!key.ok()) return key.status();
  directory.server_key_ = *std::move(key);
  if (absl::Status status = MakeDirectories(directory.allocations()); !status.ok()) return status;
  return directory;
}

absl::StatusOr<std::string> DataDir::Secret(const std::string& name,
                                            const std::function<absl::StatusOr<std::string>()>& make) const {
  const std::string file = path_ + "/" + name;
  std::string content;
  const int error = files_->Read(file, kSecretBytes, content);
  if (error == 0) {
    std::string token(absl::StripAsciiWhitespace(content));
    struct stat found {};
    const bool open_to_others = stat(file.c_str(), &found) == 0 && (found.st_mode & 077) != 0;
    if (open_to_others) {
      return absl::FailedPreconditionError(
          absl::StrCat(file, " is readable by other users; chmod 600 it, or delete it to get a new one"));
    }
    if (token.size() < kTokenBytes) {
      return absl::FailedPreconditionError(
          absl::StrCat(file, " contains no secret; delete it, and the next start creates a new one"));
    }
    return token;
  }
  if (error != ENOENT) return CannotUse(path_, absl::StrCat(name, " cannot be read: ", std::strerror(error)));
  const absl::StatusOr<std::string> token = make();
  if (!token.ok()) return token.status();
  // Jobs and clients use the secret as soon as it is returned, so it must survive a power failure.
  const FileFailure failure = WriteDurably(*files_, file, absl::StrCat(*token, "\n"));
  if (failure.error == 0) return token;
  const std::string what = failure.folder ? "it cannot be synced" : absl::StrCat(name, " cannot be written");
  return CannotUse(path_, absl::StrCat(what, ": ", std::strerror(failure.error)));
}

}  // namespace scalelab::server
