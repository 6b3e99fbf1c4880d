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

void Cut(const std::string& path, int64_t limit, int64_t size) {
  const absl::StatusOr<int> opened = OpenRegularFile(path, O_WRONLY | O_APPEND);
  if (!opened.ok()) return;
  const int fd = *opened;
  const std::string note = absl::StrCat("\n", kCutMark, ", as it had more than ", limit >> 20, " MiB]\n");
  if (ftruncate(fd, size) != 0 || write(fd, note.data(), note.size()) < 0)
    spdlog::warn("Cannot truncate '{}', which exceeds the output limit", path);
  close(fd);
}

}  // namespace

void OutputLimit::Watch(std::vector<std::string> paths, BeforeCut before_cut) {
  paths_ = std::move(paths);
  before_cut_ = std::move(before_cut);
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
    if (lstat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode) || found.st_size <= limit_) continue;
    if (before_cut_) before_cut_(path, limit_ / 2);
    Cut(path, limit_, limit_ / 2);
  }
  timer_ = loop_.After(kPause, [this] { Look(); });
}

}  // namespace scalelab::worker
