#include "server/retention/attempt_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace scalelab::server {
namespace {

// Greatest depth of a directory below the directory of an attempt. Each level needs a file descriptor.
constexpr int kMaxDepth = 64;
constexpr int kOpenDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

absl::Status Failed(const std::string& what, const std::string& path, int error) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error)));
}

// Returns whether a file of an attempt is output of a rank, such as rank-3.out or rank-3.err.
bool IsLog(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "rank-")) return false;
  if (!absl::ConsumeSuffix(&name, ".out") && !absl::ConsumeSuffix(&name, ".err")) return false;
  return !name.empty() && std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
}

// Removes the contents of directories.
class Sweeper {
 public:
  Sweeper(FilesOf what, bool dry_run, uint64_t device, FilesRemoved& removed)
      : what_(what), dry_run_(dry_run), device_(device), removed_(removed) {}

  // Removes everything in the open directory. `path` is its path in error messages.
  absl::Status Sweep(int directory, const std::string& path, int depth) {
    if (depth > kMaxDepth)
      return absl::FailedPreconditionError(absl::StrCat(path, " is too deep; remove it by hand"));
    // fdopendir takes ownership of the descriptor, so give it a copy.
    const int copy = openat(directory, ".", kOpenDirectory);
    DIR* stream = copy < 0 ? nullptr : fdopendir(copy);
    if (stream == nullptr) {
      const int error = errno;
      if (copy >= 0) close(copy);
      return Failed("read", path, error);
    }
    absl::Status status;
    while (status.ok()) {
      errno = 0;
      const dirent* entry = readdir(stream);
      if (entry == nullptr) {
        if (errno != 0) status = Failed("read", path, errno);
        break;
      }
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      status = RemoveEntry(directory, name, absl::StrCat(path, "/", name), depth);
    }
    closedir(stream);
    return status;
  }

 private:
  absl::Status RemoveEntry(int directory, const std::string& name, const std::string& path, int depth) {
    struct stat found {};
    if (fstatat(directory, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0)
      return errno == ENOENT ? absl::OkStatus() : Failed("look at", path, errno);
    const bool is_directory = S_ISDIR(found.st_mode);
    if (what_ == FilesOf::kLogs && (is_directory || !IsLog(name))) return absl::OkStatus();
    if (is_directory) {
      if (found.st_dev != device_)
        return absl::FailedPreconditionError(absl::StrCat(path, " is a mounted filesystem; unmount it"));
      const Descriptor below(openat(directory, name.c_str(), kOpenDirectory));
      if (below.get() < 0) return errno == ENOENT ? absl::OkStatus() : Failed("open", path, errno);
      if (absl::Status status = Sweep(below.get(), path, depth + 1); !status.ok()) return status;
    } else {
      ++removed_.files;
      if (S_ISREG(found.st_mode) && found.st_nlink == 1) removed_.bytes += found.st_size;
    }
    if (dry_run_) return absl::OkStatus();
    if (unlinkat(directory, name.c_str(), is_directory ? AT_REMOVEDIR : 0) == 0 || errno == ENOENT)
      return absl::OkStatus();
    return Failed("remove", path, errno);
  }

  const FilesOf what_;
  const bool dry_run_;
  const uint64_t device_;
  FilesRemoved& removed_;
};

}  // namespace

absl::StatusOr<AttemptFiles> AttemptFiles::Open(const std::string& runs_dir) {
  const int fd = open(runs_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct stat found {};
  if (fd < 0 || fstat(fd, &found) != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return Failed("open", runs_dir, error);
  }
  return AttemptFiles(runs_dir, fd, found.st_dev);
}

AttemptFiles::AttemptFiles(AttemptFiles&& other) noexcept
    : path_(other.path_), fd_(std::exchange(other.fd_, -1)), device_(other.device_) {}

AttemptFiles::~AttemptFiles() {
  if (fd_ >= 0) close(fd_);
}

absl::Status AttemptFiles::Remove(const std::string& directory, int64_t study_id, int64_t run_id,
                                  const std::string& token, FilesOf what, bool dry_run,
                                  FilesRemoved& removed) {
  const auto leave = [&](const std::string& why) {
    ++removed.left;
    removed.why_left = absl::StrCat(directory, " ", why);
    return absl::OkStatus();
  };
  const std::string study = absl::StrCat(study_id), run = absl::StrCat(run_id);
  if (token.empty() || token == "." || token == ".." || absl::StrContains(token, '/') ||
      directory != absl::StrCat(path_, "/", study, "/", run, "/", token)) {
    return leave(absl::StrCat("is not where ", path_, " has the files of this attempt"));
  }
  int at = fd_;
  std::vector<std::unique_ptr<Descriptor>> opened;
  for (const std::string& part : {study, run, token}) {
    opened.push_back(std::make_unique<Descriptor>(openat(at, part.c_str(), kOpenDirectory)));
    at = opened.back()->get();
    if (at < 0 && errno == ENOENT) return absl::OkStatus();
    if (at < 0 && (errno == ELOOP || errno == ENOTDIR))
      return leave("contains a link or a file in place of a directory");
    if (at < 0) return Failed("open", directory, errno);
    struct stat found {};
    if (fstat(at, &found) != 0) return Failed("look at", directory, errno);
    if (found.st_uid != geteuid()) return leave("belongs to another user");
    if (found.st_dev != device_) return leave("is on another filesystem");
  }
  const int run_fd = opened[1]->get(), study_fd = opened[0]->get();
  if (absl::Status status = Sweeper(what, dry_run, device_, removed).Sweep(at, directory, 0); !status.ok())
    return status;
  ++removed.directories;
  if (what == FilesOf::kLogs || dry_run) return absl::OkStatus();
  if (unlinkat(run_fd, token.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT)
    return Failed("remove", directory, errno);
  // Remove the directories of the run and the study too if they are empty.
  if (unlinkat(study_fd, run.c_str(), AT_REMOVEDIR) == 0) unlinkat(fd_, study.c_str(), AT_REMOVEDIR);
  return absl::OkStatus();
}

}  // namespace scalelab::server
