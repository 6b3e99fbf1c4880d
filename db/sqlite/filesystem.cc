#include "db/sqlite/filesystem.h"

#include <sys/vfs.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace scalelab::db {

const char* NetworkFilesystem(long type) {
  switch (static_cast<unsigned long>(type) & 0xffffffffUL) {  // statfs(2) and the filesystems' own sources
    case 0x6969:
      return "NFS";
    case 0x517b:
    case 0xff534d42:
    case 0xfe534d42:
      return "SMB";
    case 0x0bd00bd0:
      return "Lustre";
    case 0x47504653:
      return "GPFS";
    case 0x19830326:
      return "BeeGFS";
    case 0x65735546:
      return "FUSE";
    case 0x00c36400:
      return "Ceph";
    case 0x5346414f:
      return "AFS";
    case 0x73757245:
      return "Coda";
    case 0x01161970:
      return "GFS2";
    case 0x7461636f:
      return "OCFS2";
    case 0x20030528:
      return "OrangeFS";
    case 0xaad7aaea:
      return "PanFS";
    default:
      return nullptr;
  }
}

absl::Status CheckLocalFilesystem(const std::string& path) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  struct statfs info;
  if (statfs(folder.c_str(), &info) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("The folder ", folder.string(), " of the database cannot be used (",
                     std::strerror(errno), "); create it or name another one"));
  }
  const char* name = NetworkFilesystem(info.f_type);
  if (name == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, " is on a network filesystem (", name,
      "), where a write-ahead log is not safe; put it on a local disk, or ask for the rollback journal"));
}

}  // namespace scalelab::db
