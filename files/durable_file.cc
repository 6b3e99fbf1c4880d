#include "files/durable_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "planted/bug.h"

namespace scalelab {
namespace {

class System : public FileSystem {
 public:
  bool Exists(const std::string& path) override {
    struct stat found {};
    return lstat(path.c_str(), &found) == 0;
  }

  int Size(const std::string& path, int64_t& size) override {
    struct stat found {};
    if (stat(path.c_str(), &found) != 0) return errno;
    size = found.st_size;
    return 0;
  }

  int Read(const std::string& path, size_t limit, std::string& content) override {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return errno;
    content.resize(limit);
    size_t size = 0;
    int error = 0;
    while (size < limit) {
      const ssize_t got = read(fd, content.data() + size, limit - size);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) error = errno;
      if (got <= 0) break;
      size += static_cast<size_t>(got);
    }
    close(fd);
    content.resize(size);
    return error;
  }

  int Create(const std::string& path, std::string_view content) override {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    int error = 0;
    while (!content.empty() && error == 0) {
      const ssize_t written = write(fd, content.data(), content.size());
      if (written > 0) {
        content.remove_prefix(static_cast<size_t>(written));
      } else if (written == 0) {
        error = EIO;
      } else if (errno != EINTR) {
        error = errno;
      }
    }
    if (close(fd) != 0 && error == 0) error = errno;
    return error;
  }

  int Remove(const std::string& path) override { return unlink(path.c_str()) == 0 ? 0 : errno; }

  int Rename(const std::string& from, const std::string& to, bool replace) override {
    if (!replace) {
      if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
      if (errno != EINVAL) return errno;
      if (Exists(to)) return EEXIST;  // not every filesystem supports RENAME_NOREPLACE
    }
    return rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  }

  int Sync(const std::string& path) override { return Sync(path, O_RDONLY); }

  int SyncFolder(const std::string& path) override {
    const int error = Sync(path, O_RDONLY | O_DIRECTORY);
    return error == EINVAL ? 0 : error;
  }

 private:
  static int Sync(const std::string& path, int flags) {
    const int fd = open(path.c_str(), flags | O_CLOEXEC);
    if (fd < 0) return errno;
    const int error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return error;
  }
};

}  // namespace

FileSystem& SystemFiles() {
  static System system;
  return system;
}

FileFailure PublishFile(FileSystem& files, const std::string& part, const std::string& file, bool replace) {
  // Without this sync, a power failure could leave the new name with an empty file.
  if (!Planted(Bug::kRenamedFileNotSynced)) {
    if (const int error = files.Sync(part); error != 0) return {error, false};
  }
  if (const int error = files.Rename(part, file, replace); error != 0) return {error, false};
  const std::string folder = std::filesystem::path(file).parent_path().string();
  if (Planted(Bug::kRenameNotSynced)) return {};
  const int error = files.SyncFolder(folder.empty() ? "." : folder);
  if (error == 0) return {};
  files.Remove(file);  // a power failure could remove its name
  return {error, true};
}

FileFailure WriteDurably(FileSystem& files, const std::string& file, std::string_view content) {
  const std::string part = file + ".part";
  files.Remove(part);  // of a process that was interrupted
  FileFailure failure{files.Create(part, content), false};
  if (failure.error == 0) failure = PublishFile(files, part, file, /*replace=*/true);
  if (failure.error != 0) files.Remove(part);
  return failure;
}

}  // namespace scalelab
