#include "worker/provenance.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "files/regular_file.h"
#include "proto/utf8.h"
#include "spdlog/spdlog.h"
#include "worker/code_snapshot.h"
#include "worker/git_commit.h"
#include "worker/node_info.h"

namespace scalelab::worker {
namespace {

using nlohmann::ordered_json;

constexpr absl::Duration kVersionLimit = absl::Seconds(30);
constexpr absl::Duration kDiffLimit = absl::Seconds(30);
// A difference is used for this long, and at least for 20 times the time that git took.
constexpr absl::Duration kDiffAge = absl::Seconds(10);
constexpr int kDiffAgePerTime = 20;
constexpr size_t kVersionBytes = 64 << 10, kDiffBytes = 4 << 20;

ordered_json Binary(const std::string& path) { return {{"path", path}, {"sha256", FileSha256(path)}}; }

}  // namespace

ordered_json RedactedEnvironment(const std::vector<std::string>& environment) {
  ordered_json result = ordered_json::object();
  for (const std::string& entry : environment) {
    const size_t mark = entry.find('=');
    if (mark == std::string::npos || mark == 0) continue;
    const std::string name = entry.substr(0, mark);
    const std::string upper = absl::AsciiStrToUpper(name);
    bool secret = false;
    for (absl::string_view word : {"TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL"}) {
      secret = secret || absl::StrContains(upper, word);
    }
    result[name] = secret ? "(redacted)" : entry.substr(mark + 1);
  }
  return result;
}

bool WriteFileWhole(const std::string& path, const std::string& text, mode_t mode) {
  const std::string draft = path + ".new";
  const auto create = [&] { return open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode); };
  int fd = create();
  if (fd < 0 && errno == EEXIST) {  // an earlier worker has left the file, or it is not a regular file
    unlink(draft.c_str());
    fd = create();
  }
  if (fd < 0) return false;
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t written = write(fd, text.data() + at, text.size() - at);
    if (written <= 0) break;
    at += static_cast<size_t>(written);
  }
  const bool closed = close(fd) == 0;
  return closed && at == text.size() && rename(draft.c_str(), path.c_str()) == 0;
}

ordered_json EnvironmentJson(const v1::FrameworkEnvironment& environment) {
  ordered_json json;
  std::error_code error;
  const auto venv = std::filesystem::canonical(environment.venv(), error);
  if (!environment.venv().empty()) json["venv"] = error ? environment.venv() : venv.string();
  if (!environment.modules().empty())
    json["modules"] = std::vector<std::string>(environment.modules().begin(), environment.modules().end());
  if (!environment.container().empty()) json["container"] = environment.container();
  json["versions"] =
      std::map<std::string, std::string>(environment.versions().begin(), environment.versions().end());
  return json;
}

Provenance::Provenance(EventLoop& loop, Programs programs, std::vector<std::string> environment)
    : loop_(loop),
      programs_(std::move(programs)),
      environment_(std::move(environment)),
      node_(ReadNodeInfo()) {}

void Provenance::AskTrainer(Processes& processes, std::function<void()> known) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) folder = "/tmp";  // TMPDIR names a directory that does not exist on this node
  std::string file = (folder / "scalelab-version-XXXXXX").string();
  const int fd = access(programs_.trainer.c_str(), X_OK) == 0 ? mkstemp(file.data()) : -1;
  if (fd < 0) {
    complete_ = true;
    loop_.Post(std::move(known));
    return;
  }
  close(fd);
  asking_ = true;
  const Command command{{programs_.trainer, "--version"}, environment_, "/", file, ""};
  const auto finish = [this, file, known = std::move(known)] {
    if (complete_) return;
    TakeVersions(ReadHead(file, kVersionBytes));
    unlink(file.c_str());
    complete_ = true;
    asking_ = false;
    Flush();
    known();
  };
  const uint64_t job = processes.Start(
      {"SCALELAB_ATTEMPT=version", {command}, absl::ZeroDuration()},
      [finish](absl::StatusOr<int> started) {
        if (!started.ok()) finish();
      },
      [finish](JobResult) { finish(); });
  // A process that waits for a file server cannot be ended, so do not wait for its end.
  loop_.After(kVersionLimit, [&processes, job, finish] {
    processes.Stop(job, absl::ZeroDuration());
    finish();
  });
}

// Parses one line of JSON: {"name":"scalelab-trainer","version":"0.1.0","libtorch":"1.13.1",...}.
void Provenance::TakeVersions(const std::string& output) {
  const auto versions = nlohmann::json::parse(output, nullptr, false);
  if (!versions.is_object()) {
    spdlog::warn("'{} --version' did not print a JSON object; provenance will lack its versions",
                 programs_.trainer);
    return;
  }
  for (const auto& [name, value] : versions.items()) {
    if (name == "name" || !value.is_string()) continue;
    (*node_.mutable_software())[name == "version" ? "trainer" : name] = value.get<std::string>();
  }
}

void Provenance::Record(const std::string& directory, ordered_json attempt) {
  if (complete_) {
    Write(directory, attempt);
  } else {
    waiting_.emplace_back(directory, std::move(attempt));
  }
}

v1::CodeSnapshot Code::Complete() const {
  v1::CodeSnapshot complete = snapshot;
  if (diff == nullptr || !diff->dirty.has_value()) return complete;
  complete.set_git_dirty(*diff->dirty);
  if (!*diff->dirty || diff->sha256.empty()) return complete;
  complete.set_diff_sha256(diff->sha256);
  complete.set_diff_path(ValidUtf8(diff->path));
  return complete;
}

Code Provenance::CodeOf(Processes& processes, const std::vector<std::string>& command,
                        const std::string& directory) {
  Code code;
  code.snapshot = SnapshotOf(command, hashes_);
  if (code.snapshot.git_root().empty()) return code;
  std::shared_ptr<CodeDiff>& diff = diffs_[code.snapshot.SerializeAsString()];
  if (diff == nullptr || Stale(*diff)) {
    // If an attempt starts git when it is prepared and when it is launched, its directory gets two differences. Other
    // attempts may share the first one.
    const std::string path = directory + "/code.diff";
    const bool second =
        access(path.c_str(), F_OK) == 0 || std::any_of(diffs_.begin(), diffs_.end(), [&](const auto& known) {
          return known.second != nullptr && known.second->path == path;
        });
    diff = std::make_shared<CodeDiff>();
    diff->path = second ? directory + "/code-2.diff" : path;
    StartDiff(processes, code.snapshot.git_root(), diff);
  }
  code.diff = diff;
  return code;
}

// Returns whether the difference is too old for another attempt. Files of the repository that the command does not name
// may have changed since then.
bool Provenance::Stale(const CodeDiff& diff) const {
  const absl::Duration longest = std::max(kDiffAge, kDiffAgePerTime * (diff.ended_at - diff.started_at));
  return diff.ended && loop_.Now() - diff.started_at > longest;
}

void Provenance::StartDiff(Processes& processes, const std::string& git_root,
                           const std::shared_ptr<CodeDiff>& diff) {
  diff->started_at = loop_.Now();
  const auto finish = [this, diff](bool whole) {
    if (std::exchange(diff->ended, true)) return;
    diff->ended_at = loop_.Now();
    const std::string text = ReadHead(diff->path, kDiffBytes);
    if (whole || !text.empty()) diff->dirty = !text.empty();
    if (whole && !text.empty()) diff->sha256 = Sha256(text);
    if (diff_known_) diff_known_();
  };
  const uint64_t job = processes.Start(
      {"SCALELAB_ATTEMPT=diff",
       {{DiffCommand(git_root), environment_, "/", diff->path, ""}},
       absl::ZeroDuration()},
      [finish](absl::StatusOr<int> started) {
        if (!started.ok()) finish(false);
      },
      [finish](JobResult result) { finish(result.exit_status == 0 && !result.stopped); });
  // A process that waits for a file server cannot be ended, so do not wait for its end.
  loop_.After(kDiffLimit, [&processes, job, finish] {
    processes.Stop(job, absl::ZeroDuration());
    finish(false);
  });
}

void Provenance::Flush() {
  for (const auto& [directory, attempt] : std::exchange(waiting_, {})) Write(directory, attempt);
}

void Provenance::Write(const std::string& directory, const ordered_json& attempt) {
  if (common_.empty()) {
    ordered_json common;
    common["worker"] = {{"version", SCALELAB_VERSION}, {"git_commit", GitCommit()}};
    common["binaries"] = ordered_json::array();
    for (const std::string& program : {programs_.worker, programs_.rank, programs_.trainer}) {
      if (!program.empty() && access(program.c_str(), R_OK) == 0)
        common["binaries"].push_back(Binary(program));
    }
    common["software"] = ordered_json::object();
    for (const auto& [name, version] : node_.software()) common["software"][name] = version;
    common["hardware"] = {{"hostname", HostName()},
                          {"cpu_model", node_.cpu_model()},
                          {"cpus", node_.cpus()},
                          {"memory_bytes", node_.memory_bytes()},
                          {"gpus", std::vector<std::string>(node_.gpus().begin(), node_.gpus().end())},
                          {"os", node_.os()}};
    common["environment"] = RedactedEnvironment(environment_);
    common_ = common.dump(2, ' ', false, ordered_json::error_handler_t::replace);
  }
  // Joins two objects into one: the attempt's members, then the shared ones.
  std::string text = attempt.dump(2, ' ', false, ordered_json::error_handler_t::replace);
  text.resize(text.rfind('\n'));
  absl::StrAppend(&text, ",", absl::string_view(common_).substr(1), "\n");
  const std::string path = directory + "/provenance.json";
  if (!WriteFileWhole(path, text)) spdlog::warn("Cannot write '{}'", path);
}

}  // namespace scalelab::worker
