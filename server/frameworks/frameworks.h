// Probes on demand which engines are usable, and finds the environments of their frameworks. At most two
// probes run at once, in separate threads. A positive result is cached until something that it depends on
// changes. A negative result is not cached, because the user may have fixed the cause.
//
// The probes run on the coordinator's machine. With scheduler slurm the nodes have the same environments, but
// may have GPUs that this machine lacks: an engine that needs GPUs is then probed without them.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "catalog/engines.h"
#include "scalelab/v1/cluster.pb.h"
#include "scalelab/v1/worker.pb.h"
#include "server/frameworks/config_environments.h"
#include "server/frameworks/framework_probe.h"

namespace scalelab::server {

struct FrameworksOptions {
  std::string directory;  // of the environments of deploy/frameworks
  std::vector<EnvironmentConfig> environments;
  ProbeOptions probe;
  bool nodes_are_here = true;  // ranks run on this machine
};

// The results of probes, by EngineOn (catalog/device.h).
using FrameworkStates = std::map<std::string, v1::Framework>;

class Frameworks {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<FrameworkStates>)>;

  explicit Frameworks(FrameworksOptions options);
  ~Frameworks();  // calls Stop
  Frameworks(const Frameworks&) = delete;

  // Returns the environment of an engine with an adapter, nothing for other engines. The versions in it come
  // from the last probe. Never blocks. `name` is a result of EngineOn: on GPUs an engine has the environment
  // that deploy/frameworks --cuda makes, unless the configuration names another one.
  std::optional<v1::FrameworkEnvironment> EnvironmentOf(const std::string& name) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the names of all engines for a list of them: the engines on CPUs, and after each the engine on GPUs if deploy/frameworks
  // --cuda has made an environment of its own for it. Reads files.
  std::vector<std::string> Listed() const;
  // Returns the path of an environment that Ask reads for these engines, or the directory of all environments
  // if none of them has one. It shows a caller of Ask on which filesystem the call may block. Never blocks.
  std::string PathFor(const std::vector<std::string>& names) const;
  // Calls `done` once with the state of each engine, by the names of EngineOn: during this call when all
  // states are cached, else from another thread. Ignores unknown engines. Returns UNAVAILABLE if scalelabd is
  // stopping. Reads files.
  void Ask(const std::vector<std::string>& names, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the probes in flight and answers all pending calls of Ask.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Result {
    std::string stamp;
    v1::Framework state;
  };
  // A pending call of Ask.
  struct Question {
    std::set<std::string> missing;
    FrameworkStates states;
    Done done;
  };
  // An engine on one kind of device.
  struct Use {
    const Engine* engine;
    bool gpus;
    bool operator==(const Use&) const = default;
    bool operator<(const Use& other) const {
      return std::tie(engine, gpus) < std::tie(other.engine, other.gpus);
    }
  };
  static Use UseOf(absl::string_view name);
  v1::FrameworkEnvironment Configured(const Use& use) const;
  const Engine& ProbedEngine(const Engine& engine) const;
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<Use> NextUse() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Use> TakeProbed(const Use& use) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Question> TakeAnswered(const std::string& name, const v1::Framework& state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FrameworksOptions options_;

  mutable absl::Mutex mutex_;
  std::map<std::string, Result> results_ ABSL_GUARDED_BY(mutex_);  // the last result, by engine
  std::deque<Use> queue_ ABSL_GUARDED_BY(mutex_);                  // engines to probe
  std::set<Use> in_flight_ ABSL_GUARDED_BY(mutex_);                // queued or being probed
  std::vector<Question> questions_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);  // created when first needed
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace scalelab::server
