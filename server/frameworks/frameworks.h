// Which engines can run here, and where their frameworks are. Looks on demand, at most two at once, in
// threads of its own; a good answer is kept as long as nothing that it depends on has changed, a bad one is
// not kept at all: what was missing may be there now.
//
// The coordinator looks on its own machine. With scheduler slurm the nodes see the same environments, as they
// must, but may have GPUs that this machine lacks: there an engine that needs GPUs is looked at without that
// need.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "catalog/engines.h"
#include "scalelab/v1/cluster.pb.h"
#include "scalelab/v1/worker.pb.h"
#include "server/frameworks/config_environments.h"
#include "server/frameworks/framework_probe.h"

namespace scalelab::server {

struct FrameworksOptions {
  std::string directory;  // of deploy/frameworks
  std::vector<EnvironmentConfig> environments;
  ProbeOptions probe;
  bool nodes_are_here = true;  // ranks run on this machine
};

// By engine.
using FrameworkStates = std::map<std::string, v1::Framework>;

class Frameworks {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<FrameworkStates>)>;

  explicit Frameworks(FrameworksOptions options);
  ~Frameworks();  // as Stop
  Frameworks(const Frameworks&) = delete;

  // Of an engine with an adapter; nothing of others. The versions are those of the last look. Never blocks.
  std::optional<v1::FrameworkEnvironment> EnvironmentOf(const std::string& engine) const;
  // Calls `done` once with a state of each of the engines: within this call where all are known, else from a
  // thread of this class. Names that are no engines are left out. UNAVAILABLE: scalelabd is stopping.
  void Ask(const std::vector<std::string>& engines, Done done);
  // Ends looks that are under way and answers all questions.
  void Stop();

 private:
  struct Known {
    std::string stamp;
    v1::Framework state;
  };
  struct Question {
    std::set<std::string> missing;
    FrameworkStates states;
    Done done;
  };
  v1::FrameworkEnvironment Configured(const Engine& engine) const;
  const Engine& Stand(const Engine& engine) const;
  void Serve();
  void Settle(const v1::Framework& state, std::vector<Question>* answered);

  const FrameworksOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::string, Known> known_;  // guarded by mutex_
  std::deque<const Engine*> waiting_;   // guarded by mutex_
  std::set<const Engine*> under_way_;   // guarded by mutex_; waiting ones too
  std::vector<Question> questions_;     // guarded by mutex_
  std::vector<std::thread> threads_;    // guarded by mutex_; made when first needed
  bool stopping_ = false;               // guarded by mutex_
};

}  // namespace scalelab::server
