#include "tests/powercut/disk_files.h"

#include <cerrno>
#include <memory>

namespace scalelab::powercut {
namespace {

int ErrorOf(Disk::Result result) {
  if (result == Disk::Result::kOk) return 0;
  return result == Disk::Result::kNoSpace ? ENOSPC : EIO;
}

}  // namespace

bool DiskFiles::Exists(const std::string& path) { return disk_.Find(path) != nullptr; }

int DiskFiles::Size(const std::string& path, int64_t& size) {
  const std::shared_ptr<Disk::File> file = disk_.Find(path);
  if (file == nullptr) return ENOENT;
  size = static_cast<int64_t>(file->data.size());
  return 0;
}

int DiskFiles::Read(const std::string& path, size_t limit, std::string& content) {
  const std::shared_ptr<Disk::File> file = disk_.Find(path);
  if (file == nullptr) return ENOENT;
  content = file->data.substr(0, limit);
  return ErrorOf(disk_.Read());
}

int DiskFiles::Create(const std::string& path, std::string_view content) {
  if (Exists(path)) return EEXIST;
  std::shared_ptr<Disk::File> file;
  int error = ErrorOf(disk_.Create(path, file));
  const size_t middle = content.size() / 2;
  const auto write = [&](size_t begin, size_t end) {
    if (error == 0 && begin < end)
      error = ErrorOf(disk_.Write(*file, static_cast<int64_t>(begin), content.data() + begin, end - begin));
  };
  write(0, middle);
  write(middle, content.size());
  return error;
}

int DiskFiles::Remove(const std::string& path) { return Exists(path) ? ErrorOf(disk_.Unlink(path)) : ENOENT; }

int DiskFiles::Rename(const std::string& from, const std::string& to, bool replace) {
  if (!Exists(from)) return ENOENT;
  if (!replace && Exists(to)) return EEXIST;
  return ErrorOf(disk_.Rename(from, to));
}

int DiskFiles::Sync(const std::string& path) {
  const std::shared_ptr<Disk::File> file = disk_.Find(path);
  return file == nullptr ? ENOENT : ErrorOf(disk_.Sync(*file));
}

int DiskFiles::SyncFolder(const std::string&) { return ErrorOf(disk_.SyncDirectory()); }

}  // namespace scalelab::powercut
