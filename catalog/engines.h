// The table of engines: what each is made of, how it is started and what it takes. One row an engine; read by
// the rules of studies, the worker and the coordinator.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab {

struct Engine {
  using Names = std::vector<absl::string_view>;

  // How its ranks find each other, as far as whoever starts them is concerned.
  enum class Meeting {
    kByItself,  // through the attempt's directory or an address that they agree on there
    kMpi,       // through the MPI launcher that starts them
  };
  // What it takes of GPUs.
  enum class Gpus { kMay, kMust };

  absl::string_view name;         // "framework/strategy", or "custom"
  absl::string_view environment;  // what `deploy/frameworks` calls it; empty: part of scalelab, or the user's
  absl::string_view script;       // in the directory of adapters; empty where environment is
  Meeting meeting = Meeting::kByItself;
  bool one_process = false;  // one process with a replica for each rank: all of them on one node
  Gpus gpus = Gpus::kMay;
  // What it takes of the study key of that name; empty: every word of it. Backend "auto" is always taken.
  Names backends = {};
  Names precisions = {};
  Names models = {};
  Names batch_norms = {};
};

// All of them, in the order in which people are shown them.
const std::vector<Engine>& Engines();
// Null when there is no such engine.
const Engine* FindEngine(absl::string_view name);
// Names of all of them.
const std::vector<absl::string_view>& EngineNames();
// Names of all environments, each once.
std::vector<absl::string_view> EnvironmentNames();

// Of a Python framework, behind an adapter. The others are native/* and custom.
inline bool HasAdapter(const Engine& engine) { return !engine.script.empty(); }

}  // namespace scalelab
