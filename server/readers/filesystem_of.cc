#include "server/readers/filesystem_of.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace scalelab::server {
namespace {

// Returns whether `path` is `directory` or below it.
bool IsBelow(absl::string_view path, absl::string_view directory) {
  if (directory == "/") return true;
  return absl::ConsumePrefix(&path, directory) && (path.empty() || path.front() == '/');
}

// Returns the host in the source of a network mount ("host:/export", "//host/share"), or "".
std::string ServerOf(absl::string_view source) {
  if (absl::ConsumePrefix(&source, "//")) return std::string(source.substr(0, source.find('/')));
  const size_t end = source.find(":/");
  return end == absl::string_view::npos ? "" : std::string(source.substr(0, end));
}

}  // namespace

std::string FilesystemOf(const std::string& path, absl::string_view mounts) {
  const std::string normal = std::filesystem::path(path).lexically_normal();
  std::string found;
  size_t longest = 0;
  for (const absl::string_view line : absl::StrSplit(mounts, '\n', absl::SkipEmpty())) {
    // ID PARENT MAJOR:MINOR ROOT MOUNT-POINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ');
    const auto separator = std::ranges::find(fields, "-");
    if (fields.size() < 6 || fields.end() - separator < 3) continue;
    std::string directory;
    if (!absl::CUnescape(fields[4], &directory)) continue;  // a space is \040
    // The last mount on a directory hides the earlier ones.
    if (!IsBelow(normal, directory) || directory.size() < longest) continue;
    longest = directory.size();
    found = ServerOf(separator[2]);
    if (found.empty()) found = std::string(fields[2]);
  }
  return found;
}

std::string FilesystemOf(const std::string& path) {
  std::ifstream file("/proc/self/mountinfo");
  std::ostringstream mounts;
  mounts << file.rdbuf();
  return FilesystemOf(path, mounts.str());
}

}  // namespace scalelab::server
