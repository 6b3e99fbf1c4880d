#include "client/output/file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace scalelab::client {
namespace {

absl::Status CannotWrite(const std::string& path) {
  return absl::UnknownError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno),
                                         "; check its directory, your permissions and the free space"));
}

}  // namespace

absl::Status ReplaceFile(const std::string& path, const std::function<absl::Status(std::ofstream&)>& write) {
  std::error_code unknown;
  const bool replaces =
      !std::filesystem::exists(path, unknown) || std::filesystem::is_regular_file(path, unknown);
  const std::string part = replaces ? path + ".part" : path;
  std::ofstream file(part, std::ios::trunc | std::ios::binary);
  if (!file) return CannotWrite(path);
  absl::Status status = write(file);
  file.close();
  if (!file)
    status = CannotWrite(path);  // replaces an error of `write`, because only this one contains errno
  if (!replaces) return status;
  if (status.ok() && std::rename(part.c_str(), path.c_str()) != 0) status = CannotWrite(path);
  if (!status.ok()) std::remove(part.c_str());
  return status;
}

absl::Status ReplaceFile(const std::string& path, absl::string_view text) {
  return ReplaceFile(path, [text](std::ofstream& file) {
    file << text;
    return absl::OkStatus();
  });
}

}  // namespace scalelab::client
