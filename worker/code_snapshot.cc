#include "worker/code_snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "files/regular_file.h"
#include "proto/utf8.h"
#include "worker/node_info.h"

namespace scalelab::worker {
namespace {

using nlohmann::ordered_json;

constexpr int kMostFiles = 16;
constexpr off_t kLargestFile = off_t{64} << 20;
constexpr size_t kRefBytes = 64 << 10;  // maximum length of a path or a reference
// A repository has a line of 60 bytes or more in packed-refs for each branch, tag and pull request.
constexpr off_t kPackedBytes = off_t{64} << 20;
constexpr size_t kPackedPart = 1 << 20;

// Returns the directory with .git above the file; empty if there is none.
std::string GitRootOf(const std::string& file) {
  std::error_code error;
  std::filesystem::path directory = std::filesystem::path(file).parent_path();
  for (; directory.has_relative_path(); directory = directory.parent_path()) {
    if (std::filesystem::exists(directory / ".git", error)) return directory.string();
  }
  return "";
}

// Returns whether the file is a program in machine code, such as an interpreter. `path` may be a symlink.
bool IsElf(const std::string& path) {
  std::error_code error;
  return ReadHead(std::filesystem::canonical(path, error).string(), 4) == "\177ELF";
}

std::string FirstLine(const std::string& path) {
  const std::string text = ReadHead(path, kRefBytes);
  return std::string(absl::StripAsciiWhitespace(absl::string_view(text).substr(0, text.find('\n'))));
}

// Returns the hash of a reference in the file packed-refs, whose lines are "HASH NAME"; empty if it is not
// there. Reads the file in parts, and only as far as necessary.
std::string PackedCommit(const std::string& path, const std::string& reference) {
  const absl::StatusOr<int> fd = OpenRegularFile(path, O_RDONLY);
  if (!fd.ok()) return "";
  const std::string ending = absl::StrCat(" ", reference);
  std::string commit, text, part(kPackedPart, '\0');
  for (off_t at = 0; commit.empty() && at < kPackedBytes;) {
    const ssize_t got = pread(*fd, part.data(), part.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    at += got;
    text.append(part, 0, static_cast<size_t>(got));
    const size_t whole = text.rfind('\n');
    if (whole == std::string::npos) continue;
    for (absl::string_view line : absl::StrSplit(absl::string_view(text).substr(0, whole), '\n')) {
      if (!absl::ConsumeSuffix(&line, ending)) continue;
      commit = std::string(line);
      break;
    }
    text.erase(0, whole + 1);  // the rest is the beginning of a line
  }
  close(*fd);
  return commit;
}

// Returns the hash of a reference, "refs/heads/main"; empty if it has no commit.
std::string CommitOfReference(const std::string& git, const std::string& reference) {
  const std::string loose = FirstLine(absl::StrCat(git, "/", reference));
  return loose.empty() ? PackedCommit(git + "/packed-refs", reference) : loose;
}

// Returns the commit that is checked out. In a linked worktree .git is a file that names its directory.
std::string CommitOf(const std::string& root) {
  std::string git = root + "/.git";
  std::error_code error;
  if (std::string link = FirstLine(git); absl::StartsWith(link, "gitdir: ")) {
    const std::filesystem::path target(link.substr(8));
    git = (target.is_absolute() ? target : std::filesystem::path(root) / target).lexically_normal().string();
  }
  const std::string head = FirstLine(git + "/HEAD");
  if (!absl::StartsWith(head, "ref: ")) return head;
  const std::string common = FirstLine(git + "/commondir");
  const std::string shared =
      common.empty() ? git : (std::filesystem::path(git) / common).lexically_normal().string();
  return CommitOfReference(shared, head.substr(5));
}

}  // namespace

std::string FileHashes::Of(const std::string& path) {
  constexpr size_t kMostKnown = 1000;
  struct stat found {};
  if (stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode) || found.st_size > kLargestFile) return "";
  const int64_t changed = found.st_mtim.tv_sec * 1'000'000'000 + found.st_mtim.tv_nsec;
  const auto inode = static_cast<int64_t>(found.st_ino);
  if (known_.size() >= kMostKnown) known_.clear();
  Known& known = known_[path];
  if (known.sha256.empty() || known.size != found.st_size || known.changed != changed || known.inode != inode)
    known = {found.st_size, changed, inode, FileSha256(path)};
  return known.sha256;
}

v1::CodeSnapshot SnapshotOf(const std::vector<std::string>& command, FileHashes& hashes) {
  v1::CodeSnapshot snapshot;
  std::string git_root;
  bool of_script = false;  // git_root is that of a file which is not an ELF program
  for (const std::string& word : command) {
    if (!absl::StartsWith(word, "/") || snapshot.files_size() >= kMostFiles) continue;
    std::string sha256 = hashes.Of(word);
    if (sha256.empty()) continue;
    v1::CodeSnapshot::File& file = *snapshot.add_files();
    file.set_path(ValidUtf8(word));
    file.set_sha256(std::move(sha256));
    if (of_script) continue;
    std::string root = GitRootOf(word);
    of_script = !root.empty() && !IsElf(word);
    // An interpreter may be part of another repository: ~/.pyenv is a clone of pyenv.
    if (git_root.empty() || of_script) git_root = std::move(root);
  }
  snapshot.set_git_root(ValidUtf8(git_root));
  if (!git_root.empty()) snapshot.set_git_commit(ValidUtf8(CommitOf(git_root)));
  return snapshot;
}

ordered_json CodeJson(const v1::CodeSnapshot& snapshot, const std::string& diff) {
  ordered_json json;
  for (const v1::CodeSnapshot::File& file : snapshot.files())
    json["files"].push_back({{"path", file.path()}, {"sha256", file.sha256()}});
  if (snapshot.git_root().empty()) return json;
  json["git"] = {{"root", snapshot.git_root()}, {"commit", snapshot.git_commit()}};
  if (!diff.empty()) json["git"]["diff"] = diff;
  return json;
}

std::vector<std::string> DiffCommand(const std::string& git_root) {
  // Disable fsmonitor, external diff and textconv, because with these settings a repository could start programs. The exit
  // status of a pipeline is that of its last command, so the status of git is written to descriptor 4. It is 141 (SIGPIPE)
  // if head has closed the pipe after 4 MiB.
  return {
      "sh", "-c",
      "exec 3>&1; status=$({ { git -c core.fsmonitor=false --no-optional-locks -C \"$0\" diff --no-ext-diff "
      "--no-textconv HEAD; echo $? >&4; } | head -c 4194304 >&3; } 4>&1); "
      "[ \"$status\" = 0 ] || [ \"$status\" = 141 ]",
      git_root};
}

}  // namespace scalelab::worker
