// Records a run's provenance: the binaries, hardware and environment that its numbers depend on.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "scalelab/v1/worker.pb.h"
#include "worker/code_snapshot.h"
#include "worker/process/event_loop.h"
#include "worker/process/process.h"

namespace scalelab::worker {

// Returns "NAME=value" entries as a JSON object. Values of variables whose name contains TOKEN, SECRET,
// PASSWORD, KEY or CREDENTIAL are replaced by "(redacted)".
nlohmann::ordered_json RedactedEnvironment(const std::vector<std::string>& environment);

// Replaces a file atomically: a reader sees the old or the new contents. Returns false on failure,
// with errno set.
bool WriteFileWhole(const std::string& path, const std::string& text);

// Returns a framework's environment as JSON: its place and the versions of its packages.
nlohmann::ordered_json EnvironmentJson(const v1::FrameworkEnvironment& environment);

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
  // The node, with the software versions known so far.
  const v1::NodeInfo& node() const { return node_; }
  // Writes <directory>/provenance.json: the members of `attempt` and those that all attempts of this worker
  // share. Before the versions are known, the file is only queued.
  void Record(const std::string& directory, nlohmann::ordered_json attempt);
  // Writes all queued files.
  void Flush();
  // Returns what provenance.json has about the code of a user's command. The first time that a git repository is used, also
  // starts to write the difference between its working tree and its last commit to <directory>/code.diff; later attempts name
  // that file, so that git does not disturb each run.
  nlohmann::ordered_json CodeOf(Processes& processes, const std::vector<std::string>& command,
                                const std::string& directory);

 private:
  void TakeVersions(const std::string& output);
  void Write(const std::string& directory, const nlohmann::ordered_json& attempt);

  EventLoop& loop_;
  const Programs programs_;
  const std::vector<std::string> environment_;
  v1::NodeInfo node_;
  bool complete_ = false, asking_ = false;
  FileHashes hashes_;
  std::map<std::string, std::string> diffs_;  // by root of the repository: the path of code.diff
  std::string common_;                        // JSON text of the shared members, made when first needed
  std::vector<std::pair<std::string, nlohmann::ordered_json>> waiting_;
};

}  // namespace scalelab::worker
