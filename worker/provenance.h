// What is written beside a run so that its numbers can be judged later: which binaries, on what, in which
// environment.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "scalelab/v1/worker.pb.h"
#include "worker/process/event_loop.h"
#include "worker/process/process.h"

namespace scalelab::worker {

// "NAME=value" entries as an object; values of variables whose name holds TOKEN, SECRET, PASSWORD, KEY or
// CREDENTIAL are replaced.
nlohmann::ordered_json RedactedEnvironment(const std::vector<std::string>& environment);

// Replaces a file in one step: a reader sees all of it or none.
bool WriteFileWhole(const std::string& path, const std::string& text);

// Of a framework's environment: where it is, and the versions of its packages.
nlohmann::ordered_json EnvironmentJson(const v1::FrameworkEnvironment& environment);

// What a rank trained with: "framework" as its start event says ("pytorch 1.13.1"), and "environment", the
// directory of the virtual environment behind all links, or the container, or the modules. Parts that are not
// told are absent.
std::map<std::string, std::string> SoftwareOf(const v1::FrameworkEnvironment& environment,
                                              const std::string& event_file);

class Provenance {
 public:
  // `programs`: what is hashed, and of which the trainer (if not empty) is asked for its versions.
  struct Programs {
    std::string worker, rank, trainer;
  };
  Provenance(EventLoop& loop, Programs programs, std::vector<std::string> environment);

  // Asks the trainer for its versions; `known` is called when they (or that there are none) are known.
  void AskTrainer(Processes& processes, std::function<void()> known);
  // The node, with the software known so far.
  const v1::NodeInfo& node() const { return node_; }
  // Writes <directory>/provenance.json: `attempt` and what is the same for all attempts of this worker. Waits
  // for the versions first.
  void Record(const std::string& directory, nlohmann::ordered_json attempt);
  // Writes what still waits.
  void Flush();

 private:
  void TakeVersions(const std::string& output);
  void Write(const std::string& directory, const nlohmann::ordered_json& attempt);

  EventLoop& loop_;
  const Programs programs_;
  const std::vector<std::string> environment_;
  v1::NodeInfo node_;
  bool complete_ = false;
  std::string common_;  // JSON text of what all attempts share, made when first needed
  std::vector<std::pair<std::string, nlohmann::ordered_json>> waiting_;
};

}  // namespace scalelab::worker
