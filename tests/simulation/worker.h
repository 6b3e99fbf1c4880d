// The simulated process of a worker: the real agent with its attempts, its event follower and its heartbeats, on an event loop
// that is stepped. Its network, its ranks and what can happen to a process are simulated.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/network.h"
#include "tests/simulation/ranks.h"
#include "tests/simulation/slurm.h"
#include "tests/simulation/timers.h"
#include "tests/simulation/world.h"
#include "worker/agent.h"
#include "worker/heartbeats.h"

namespace scalelab::simulation {

using Desired = v1::SynchronizeResponse::DesiredAttempt;

// The parts of the simulation that all workers use.
struct Site {
  World& world;
  Network& network;
  Model& model;
  Directories& directories;
  std::map<std::string, Desired> attempts = {};  // attempts that workers have received, by token
};

class Worker {
 public:
  // `exited` is called once if the process exits by itself. `wrote` is called when ranks that it has launched have
  // written lines or have ended.
  Worker(Site& site, std::string allocation, std::string node, int node_index,
         std::function<void(int status)> exited, std::function<void()> wrote);
  ~Worker();

  // Starts the process after `delay`.
  void Start(absl::Duration delay);
  void Leave();                // SIGTERM
  void Suspend(bool suspend);  // SIGSTOP, SIGCONT
  void Kill();                 // SIGKILL; its ranks continue
  // Call it when the event loop or the heartbeats may have to run earlier than planned.
  void Rearm();
  // Returns the ranks that this worker has launched. They may have ended.
  const std::vector<std::shared_ptr<Ranks>>& ranks() const { return ranks_; }

  // The methods below are for the objects of the process, such as WorkerClient.
  Site& site() { return site_; }
  Timers& timers() { return timers_; }
  const std::string& allocation() const { return allocation_; }
  const std::string& node() const { return node_; }
  int queue_limit() const { return queue_limit_; }
  void AddRanks(std::shared_ptr<Ranks> ranks);
  // Runs `call` on the event loop.
  void Post(std::function<void()> call);
  // Record that the worker has called Synchronize, or that it makes no further calls of it.
  void NoteCall() { last_call_ = world_.queue.Steady(); }
  void NoteSilence() { last_call_ = absl::InfiniteDuration(); }

 private:
  struct Core;

  void Step();
  void StepHeartbeats();
  void Hang();
  void Block();
  void CheckHeartbeats();

  Site& site_;
  World& world_;
  const std::string allocation_, node_;
  const int queue_limit_;
  std::function<void(int)> exited_;
  const std::function<void()> wrote_;
  std::vector<std::shared_ptr<Ranks>> ranks_;
  bool blocked_ = false;
  absl::Duration step_due_ = absl::InfiniteDuration(), heartbeat_due_ = absl::InfiniteDuration();
  uint64_t step_number_ = 0, heartbeat_number_ = 0;
  // Time of the last call of Synchronize; infinite: no call is expected.
  absl::Duration last_call_ = absl::InfiniteDuration();
  Timers timers_;
  std::unique_ptr<Core> core_;  // null after the end of the process
  const std::shared_ptr<int> alive_ = std::make_shared<int>();
};

// The workers of one job; the ranks are steps of the job and end with it.
std::unique_ptr<JobProcesses> LaunchWorkers(Site& site, const server::JobRequest& request,
                                            std::vector<std::string> nodes,
                                            std::function<void(int status)> ended);

}  // namespace scalelab::simulation
