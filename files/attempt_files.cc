#include "files/attempt_files.h"

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
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace scalelab {
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

// Calls `visit` with the name and the path of each entry of an open directory, until it returns an error. `path` is the
// path of the directory in error messages.
template <class Visit>
absl::Status ForEachEntry(int directory, const std::string& path, const Visit& visit) {
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
    status = visit(name, absl::StrCat(path, "/", name));
  }
  closedir(stream);
  return status;
}

absl::Status CheckDepth(const std::string& path, int depth) {
  if (depth <= kMaxDepth) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, " is too deep; remove it by hand"));
}

absl::Status CheckDevice(const struct stat& found, uint64_t device, const std::string& path) {
  if (found.st_dev == device) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, " is a mounted filesystem; unmount it"));
}

// Depth of the contents of RUNS/STUDY. The contents of the directory of an attempt have depth 0.
constexpr int kDepthOfStudy = -2;

// Removes the contents of directories. Returns CANCELLED when `over` returns true.
class Sweeper {
 public:
  Sweeper(FilesOf what, bool dry_run, uint64_t device, const std::function<bool()>& over,
          FilesRemoved& removed)
      : what_(what), dry_run_(dry_run), device_(device), over_(over), removed_(removed) {}

  // Removes everything in the open directory. `path` is its path in error messages.
  absl::Status Sweep(int directory, const std::string& path, int depth) {
    if (absl::Status status = CheckDepth(path, depth); !status.ok()) return status;
    return ForEachEntry(directory, path, [&](const std::string& name, const std::string& path_of_entry) {
      return RemoveEntry(directory, name, path_of_entry, depth);
    });
  }

 private:
  absl::Status RemoveEntry(int directory, const std::string& name, const std::string& path, int depth) {
    // Check the name first, so that a removal that is continued does not examine all other files again.
    if (what_ == FilesOf::kLogs && !IsLog(name)) return absl::OkStatus();
    if (over_()) return absl::CancelledError("interrupted");
    struct stat found {};
    if (fstatat(directory, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0)
      return errno == ENOENT ? absl::OkStatus() : Failed("look at", path, errno);
    const bool is_directory = S_ISDIR(found.st_mode);
    if (what_ == FilesOf::kLogs && is_directory) return absl::OkStatus();
    if (is_directory) {
      if (absl::Status status = CheckDevice(found, device_, path); !status.ok()) return status;
      const Descriptor below(openat(directory, name.c_str(), kOpenDirectory));
      if (below.get() < 0) return errno == ENOENT ? absl::OkStatus() : Failed("open", path, errno);
      if (absl::Status status = Sweep(below.get(), path, depth + 1); !status.ok()) return status;
      if (depth == -1) ++removed_.directories;
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
  const std::function<bool()>& over_;
  FilesRemoved& removed_;
};

// Finds out whether the contents of the directory of a study may be removed.
class StudyInspector {
 public:
  // `changed`: when the directory of the study was changed.
  StudyInspector(absl::Time changed, absl::Time until, uint64_t device, const std::function<bool()>& over)
      : until_(until), device_(device), over_(over), directory_changed_(changed) {}

  // Reads the directory and its subdirectories until it finds a file that is too new. Returns CANCELLED as soon as
  // `over` returns true.
  absl::Status Inspect(int directory, const std::string& path, int depth) {
    if (absl::Status status = CheckDepth(path, depth); !status.ok()) return status;
    return ForEachEntry(directory, path, [&](const std::string& name, const std::string& path_of_entry) {
      return InspectEntry(directory, name, path_of_entry, depth);
    });
  }
  // Removing a file changes the times of its directory. They count only if there is no file, so that a removal that was
  // interrupted is continued.
  bool OldEnough() const { return has_files_ ? !has_new_file_ : directory_changed_ <= until_; }
  // Path of a directory that belongs to another user; empty if there is none.
  const std::string& foreign() const { return foreign_; }

 private:
  absl::Status InspectEntry(int directory, const std::string& name, const std::string& path, int depth) {
    if (has_new_file_ || !foreign_.empty()) return absl::OkStatus();
    if (over_()) return absl::CancelledError("interrupted");
    struct stat found {};
    if (fstatat(directory, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0)
      return errno == ENOENT ? absl::OkStatus() : Failed("look at", path, errno);
    if (!S_ISDIR(found.st_mode)) {
      has_files_ = true;
      // A program can set the time of the modification of a file, but not that of its last change.
      has_new_file_ = absl::TimeFromTimespec(found.st_ctim) > until_;
      return absl::OkStatus();
    }
    if (absl::Status status = CheckDevice(found, device_, path); !status.ok()) return status;
    // A directory of a run or an attempt. Directories below them may belong to anybody.
    if (depth < 0 && found.st_uid != geteuid()) {
      foreign_ = path;
      return absl::OkStatus();
    }
    directory_changed_ = std::max(directory_changed_, absl::TimeFromTimespec(found.st_ctim));
    const Descriptor below(openat(directory, name.c_str(), kOpenDirectory));
    if (below.get() < 0) return errno == ENOENT ? absl::OkStatus() : Failed("open", path, errno);
    return Inspect(below.get(), path, depth + 1);
  }

  const absl::Time until_;
  const uint64_t device_;
  const std::function<bool()>& over_;
  bool has_files_ = false, has_new_file_ = false;
  absl::Time directory_changed_;  // the last change of any directory
  std::string foreign_;
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
                                  const std::string& token, FilesOf what, bool dry_run, FilesRemoved& removed,
                                  const std::function<bool()>& over) {
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
    if (at < 0 && errno == ENOENT) {
      // An earlier call may have ended before it removed the directory of the run.
      const bool has_run = opened.size() == 3;
      if (has_run && what == FilesOf::kEverything && !dry_run)
        unlinkat(opened[0]->get(), run.c_str(), AT_REMOVEDIR);
      return absl::OkStatus();
    }
    if (at < 0 && (errno == ELOOP || errno == ENOTDIR))
      return leave("contains a link or a file in place of a directory");
    if (at < 0) return Failed("open", directory, errno);
    struct stat found {};
    if (fstat(at, &found) != 0) return Failed("look at", directory, errno);
    if (found.st_uid != geteuid()) return leave("belongs to another user");
    if (found.st_dev != device_) return leave("is on another filesystem");
  }
  const int run_fd = opened[1]->get(), study_fd = opened[0]->get();
  if (absl::Status status = Sweeper(what, dry_run, device_, over, removed).Sweep(at, directory, 0);
      !status.ok())
    return status;
  ++removed.directories;
  if (what == FilesOf::kLogs || dry_run) return absl::OkStatus();
  if (unlinkat(run_fd, token.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT)
    return Failed("remove", directory, errno);
  unlinkat(study_fd, run.c_str(), AT_REMOVEDIR);  // fails if it is not empty
  return absl::OkStatus();
}

absl::StatusOr<bool> AttemptFiles::HasStudy(int64_t study_id) {
  const std::string name = absl::StrCat(study_id);
  struct stat found {};
  if (fstatat(fd_, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0) return S_ISDIR(found.st_mode);
  if (errno == ENOENT) return false;
  return Failed("look at", absl::StrCat(path_, "/", name), errno);
}

void AttemptFiles::RemoveEmptyStudy(int64_t study_id) {
  unlinkat(fd_, absl::StrCat(study_id).c_str(), AT_REMOVEDIR);
}

absl::StatusOr<std::vector<int64_t>> AttemptFiles::ListStudies(int64_t above) {
  std::vector<int64_t> ids;
  const absl::Status status = ForEachEntry(fd_, path_, [&](const std::string& name, const std::string& path) {
    int64_t id = 0;
    // Converting back leaves out names such as "007" and "+7".
    if (!absl::SimpleAtoi(name, &id) || id <= above || absl::StrCat(id) != name) return absl::OkStatus();
    struct stat found {};
    if (fstatat(fd_, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0)
      return errno == ENOENT ? absl::OkStatus() : Failed("look at", path, errno);
    if (S_ISDIR(found.st_mode) && found.st_uid == geteuid()) ids.push_back(id);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  std::sort(ids.begin(), ids.end());
  return ids;
}

absl::StatusOr<bool> AttemptFiles::RemoveStudy(int64_t study_id, absl::Time until, bool dry_run,
                                               const std::function<bool()>& over, FilesRemoved& removed) {
  const std::string name = absl::StrCat(study_id), path = absl::StrCat(path_, "/", name);
  const auto leave = [&](const std::string& why) {
    ++removed.left;
    removed.why_left = why;
    return false;
  };
  const Descriptor study(openat(fd_, name.c_str(), kOpenDirectory));
  if (study.get() < 0) {
    if (errno == ENOENT) return false;
    if (errno == ELOOP || errno == ENOTDIR) return leave(absl::StrCat(path, " is not a directory"));
    return Failed("open", path, errno);
  }
  struct stat found {};
  if (fstat(study.get(), &found) != 0) return Failed("look at", path, errno);
  if (found.st_dev != device_) return leave(absl::StrCat(path, " is on another filesystem"));
  if (found.st_uid != geteuid()) return leave(absl::StrCat(path, " belongs to another user"));
  StudyInspector inspector(absl::TimeFromTimespec(found.st_ctim), until, device_, over);
  if (absl::Status status = inspector.Inspect(study.get(), path, kDepthOfStudy); !status.ok()) return status;
  if (!inspector.foreign().empty())
    return leave(absl::StrCat(inspector.foreign(), " belongs to another user"));
  if (!inspector.OldEnough()) return false;
  absl::Status status =
      Sweeper(FilesOf::kEverything, dry_run, device_, over, removed).Sweep(study.get(), path, kDepthOfStudy);
  if (!status.ok()) return status;
  if (!dry_run && unlinkat(fd_, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT)
    return Failed("remove", path, errno);
  return true;
}

}  // namespace scalelab
