#include "worker/process/output_limit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "files/regular_file.h"
#include "spdlog/spdlog.h"

namespace scalelab::worker {
namespace {

constexpr absl::Duration kPause = absl::Seconds(1);

void Cut(const std::string& path, int64_t limit) {
  const absl::StatusOr<int> opened = OpenRegularFile(path, O_WRONLY | O_APPEND);
  if (!opened.ok()) return;
  const int fd = *opened;
  const std::string note =
      absl::StrCat("\n[scalelab-worker cut this file here, as it had more than ", limit >> 20, " MiB]\n");
  if (ftruncate(fd, limit / 2) != 0 || write(fd, note.data(), note.size()) < 0)
    spdlog::warn("Cannot truncate '{}', which exceeds the output limit", path);
  close(fd);
}

}  // namespace

void OutputLimit::Watch(std::vector<std::string> paths) {
  paths_ = std::move(paths);
  timer_ = loop_.After(kPause, [this] { Look(); });
}

void OutputLimit::Finish() {
  loop_.Cancel(std::exchange(timer_, 0));
  if (!paths_.empty()) Look();
  loop_.Cancel(std::exchange(timer_, 0));
  paths_.clear();
}

void OutputLimit::Look() {
  for (const std::string& path : paths_) {
    struct stat found {};
    if (lstat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && found.st_size > limit_)
      Cut(path, limit_);
  }
  timer_ = loop_.After(kPause, [this] { Look(); });
}

}  // namespace scalelab::worker
