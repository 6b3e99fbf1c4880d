#include "agent/user_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/checks.h"

namespace scalelab::agent {
namespace {

constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr int64_t kMaxLength = 2 << 20;

absl::Status Failed(absl::string_view what, const std::string& path, int error) {
  const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::FailedPreconditionError(text);
}

// Opens a folder below `directory` step by step. With `make`, creates what is missing. Returns a descriptor.
absl::StatusOr<int> OpenFolder(const std::string& directory, absl::string_view relative, bool make) {
  int fd = open(directory.c_str(), kFolder);
  std::string path = directory;
  const std::vector<std::string> parts = absl::StrSplit(relative, '/');
  for (const std::string& part : parts) {
    if (fd < 0) return Failed("open", path, errno);
    absl::StrAppend(&path, "/", part);
    if (make && mkdirat(fd, part.c_str(), 0700) != 0 && errno != EEXIST) {
      const int error = errno;
      close(fd);
      return Failed("create", path, error);
    }
    const int next = openat(fd, part.c_str(), kFolder);
    const int error = errno;
    close(fd);
    fd = next;
    errno = error;
  }
  if (fd < 0) return Failed("open", path, errno);
  return fd;
}

absl::Status CheckOwn(const std::string& directory) {
  struct stat found {};
  if (lstat(directory.c_str(), &found) != 0) return Failed("open", directory, errno);
  if (S_ISDIR(found.st_mode) && found.st_uid == geteuid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(directory, " is not a directory of this user; ask the operator to remove it"));
}

// Opens the directory of the user for removals.
absl::StatusOr<AttemptFiles> OpenOwn(const std::string& directory) {
  // A missing directory must not look as if the files in it had been removed: its filesystem may not be mounted.
  if (auto s = CheckOwn(directory); !s.ok()) return absl::FailedPreconditionError(s.message());
  return AttemptFiles::Open(directory);
}

// Parses an id. Returns false for other names, such as "007".
bool ReadId(const std::string& text, int64_t* id) {
  return absl::SimpleAtoi(text, id) && *id > 0 && absl::StrCat(*id) == text;
}

absl::Status NoAttempt(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(path, " is not the directory of an attempt or a study"));
}

}  // namespace

absl::Status MakeUserDirectory(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return Failed("create", directory, errno);
  return CheckOwn(directory);
}

absl::Status PrepareJob(const std::string& directory, const std::string& job, const std::string& script) {
  const absl::StatusOr<int> folder = OpenFolder(directory, absl::StrCat("allocations/", job), /*make=*/true);
  if (!folder.ok()) return folder.status();
  const absl::Cleanup close_folder = [&] { close(*folder); };
  const std::string path = absl::StrCat(directory, "/allocations/", job, "/job.sh");
  const int fd =
      openat(*folder, "job.sh", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  if (fd < 0) return Failed("write", path, errno);
  int error = 0;
  // On a full disk, only the write after a partial one returns the reason.
  for (size_t at = 0; at < script.size() && error == 0;) {
    const ssize_t count = write(fd, script.data() + at, script.size() - at);
    if (count > 0) at += static_cast<size_t>(count);
    if (count == 0) error = EIO;
    if (count < 0 && errno != EINTR) error = errno;
  }
  if (close(fd) != 0 && error == 0) error = errno;
  return error == 0 ? absl::OkStatus() : Failed("write", path, error);
}

absl::StatusOr<std::string> ReadUserFile(const std::string& directory, const std::string& folder,
                                         const std::string& name, int64_t offset, int64_t length) {
  if (auto s = CheckBelow(absl::StrCat(folder, "/", name), directory); !s.ok()) return s;
  if (auto s = CheckBelow(folder, directory); !s.ok()) return s;
  if (name.find('/') != std::string::npos || offset < 0 || length < 0)
    return absl::InvalidArgumentError("invalid file name, offset or length");
  const std::string path = absl::StrCat(folder, "/", name);
  const absl::StatusOr<int> in = OpenFolder(directory, folder.substr(directory.size() + 1), /*make=*/false);
  if (!in.ok()) return in.status();
  const absl::Cleanup close_folder = [&] { close(*in); };
  // Without O_NONBLOCK, opening a FIFO blocks until a program writes to it.
  const int fd = openat(*in, name.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return Failed("read", path, errno);
  const absl::Cleanup close_file = [&] { close(fd); };
  struct stat found {};
  if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a regular file (a program has replaced it), and is not read"));
  }
  std::string data(static_cast<size_t>(std::min(length, kMaxLength)), '\0');
  ssize_t got = -1;
  do {
    got = pread(fd, data.data(), data.size(), offset);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return Failed("read", path, errno);
  data.resize(static_cast<size_t>(got));
  return data;
}

absl::StatusOr<UserFilesRemoved> RemoveUserFiles(const std::string& directory, const std::string& attempt,
                                                 FilesOf what, bool dry_run,
                                                 const std::function<bool()>& over) {
  if (auto s = CheckBelow(attempt, directory); !s.ok()) return s;
  const std::vector<std::string> parts = absl::StrSplit(attempt.substr(directory.size() + 1), '/');
  int64_t study = 0, run = 0;
  if (parts.size() != 3 || !ReadId(parts[0], &study) || !ReadId(parts[1], &run)) return NoAttempt(attempt);
  absl::StatusOr<AttemptFiles> files = OpenOwn(directory);
  if (!files.ok()) return files.status();
  UserFilesRemoved removed;
  const absl::Status status =
      files->Remove(attempt, study, run, parts[2], what, dry_run, removed.files, over);
  removed.complete = !absl::IsCancelled(status);
  if (removed.complete && !status.ok()) return status;
  return removed;
}

absl::StatusOr<bool> RemoveEmptyStudy(const std::string& directory, const std::string& study, bool dry_run) {
  if (auto s = CheckBelow(study, directory); !s.ok()) return s;
  int64_t id = 0;
  if (!ReadId(study.substr(directory.size() + 1), &id)) return NoAttempt(study);
  absl::StatusOr<AttemptFiles> files = OpenOwn(directory);
  if (!files.ok()) return files.status();
  absl::StatusOr<bool> present = files->HasStudy(id);
  if (present.ok() && *present && !dry_run) files->RemoveEmptyStudy(id);
  return present;
}

}  // namespace scalelab::agent
