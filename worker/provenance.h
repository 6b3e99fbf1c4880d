// Records a run's provenance: the binaries, hardware and environment that its numbers depend on.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "scalelab/v1/worker.pb.h"
#include "worker/code_snapshot.h"
#include "worker/process/event_loop.h"
#include "worker/process/process.h"

namespace scalelab::worker {

// Returns "NAME=value" entries as a JSON object. Values of variables whose name contains TOKEN, SECRET,
// PASSWORD, KEY or CREDENTIAL are replaced by "(redacted)".
nlohmann::ordered_json RedactedEnvironment(const std::vector<std::string>& environment);

// The mode of a file that only the account of the job may read.
inline constexpr mode_t kOwnerOnly = 0600;

// Replaces a file atomically: a reader sees the old or the new contents. The new file has `mode`, without the
// bits of the process's umask. Returns false on failure, with errno set.
bool WriteFileWhole(const std::string& path, const std::string& text, mode_t mode = 0644);

// Returns a framework's environment as JSON: its path, modules or container, and the versions
// of its packages.
nlohmann::ordered_json EnvironmentJson(const v1::FrameworkEnvironment& environment);

// The difference between a git working tree and its last commit.
struct CodeDiff {
  std::string path;           // of the file that has it
  bool ended = false;         // git has ended, could not be started, or has reached its time limit
  std::optional<bool> dirty;  // whether there is a difference; nothing if git failed
  std::string sha256;         // of the file; empty if there is no difference, or if git did not end in time
  absl::Duration started_at, ended_at;  // EventLoop::Now
};

// The code of a program of a user.
struct Code {
  v1::CodeSnapshot snapshot;             // without the fields of the difference
  std::shared_ptr<const CodeDiff> diff;  // null: no file is in a git repository

  // Returns whether git still computes the difference.
  bool awaits_diff() const { return diff != nullptr && !diff->ended; }
  // Returns the snapshot with what is known of the difference.
  v1::CodeSnapshot Complete() const;
};

class Provenance {
 public:
  // Programs to hash. If `trainer` is not empty, AskTrainer runs it for its versions.
  struct Programs {
    std::string worker, rank, trainer;
  };
  Provenance(EventLoop& loop, Programs programs, std::vector<std::string> environment);

  // Runs the trainer to get its versions. Calls `known` on the loop's thread when they are known, or when the
  // trainer has not reported any. The limit is 30 s.
  void AskTrainer(Processes& processes, std::function<void()> known);
  // Returns whether the trainer has been asked and has not answered.
  bool asking() const { return asking_; }
  // Returns the description of the node, with the software versions known so far.
  const v1::NodeInfo& node() const { return node_; }
  // Writes <directory>/provenance.json: the members of `attempt` and those that all attempts of this worker
  // share. Before the versions are known, the file is only queued.
  void Record(const std::string& directory, nlohmann::ordered_json attempt);
  // Writes all queued files.
  void Flush();
  // Returns the code of a user's command. If the commit or a file of the command has changed, or the last difference of
  // the git repository is older than 10 s, also starts git, which writes the difference to <directory>/code.diff.
  // Otherwise attempts share the last difference, so that git does not disturb each of many short runs. If git is slow,
  // the difference is used longer: 20 times as long as git took. The limit of git is 30 s.
  Code CodeOf(Processes& processes, const std::vector<std::string>& command, const std::string& directory);
  // Sets what is called on the loop's thread when a difference is known.
  void OnDiff(std::function<void()> known) { diff_known_ = std::move(known); }

 private:
  void TakeVersions(const std::string& output);
  bool Stale(const CodeDiff& diff) const;
  void StartDiff(Processes& processes, const std::string& git_root, const std::shared_ptr<CodeDiff>& diff);
  void Write(const std::string& directory, const nlohmann::ordered_json& attempt);

  EventLoop& loop_;
  const Programs programs_;
  const std::vector<std::string> environment_;
  v1::NodeInfo node_;
  bool complete_ = false, asking_ = false;
  FileHashes hashes_;
  std::map<std::string, std::shared_ptr<CodeDiff>> diffs_;  // the last ones, by the serialized snapshot
  std::function<void()> diff_known_;
  std::string common_;  // JSON text of the shared members, made when first needed
  std::vector<std::pair<std::string, nlohmann::ordered_json>> waiting_;
};

}  // namespace scalelab::worker
