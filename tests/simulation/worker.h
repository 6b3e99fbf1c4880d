// A simulated worker: follows the protocol as worker/agent.cc, worker/attempt.cc and worker/event_follower.cc do.
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

namespace scalelab::simulation {

// What workers use.
struct Site {
  World& world;
  Network& network;
  Model& model;
  Directories& directories;
};

class Worker {
 public:
  using Desired = v1::SynchronizeResponse::DesiredAttempt;

  Worker(Site& site, std::string allocation, std::string node, int node_index,
         std::function<void(int status)> exited);

  void Start() { Sync(); }
  void Leave();  // SIGTERM
  Timers& timers() { return timers_; }
  // Adds the ranks that this worker has launched.
  void AddRanks(std::vector<std::shared_ptr<Ranks>>& ranks) const;

 private:
  enum class Phase { kPreparing, kRunning, kDraining, kEnded };
  // The event file of one rank.
  struct Stream {
    int rank;
    int64_t durable = 0;
    bool known = false, fenced = false;
  };
  struct Attempt {
    Desired desired;
    Phase phase = Phase::kPreparing;
    bool begun = false, launches = false, stopping = false, abandoned = false;
    bool sending = false, send_due = false;
    int failures = 0;
    int exit_status = 0;
    v1::Attempt::Cause cause = v1::Attempt::CAUSE_UNSPECIFIED;
    std::string message;
    std::shared_ptr<Ranks> ranks;
    std::vector<Stream> streams;
  };
  using AttemptPointer = std::shared_ptr<Attempt>;

  void Sync();
  void ScheduleSync(absl::Duration within);
  void OnSynchronized(uint64_t number, absl::StatusOr<v1::SynchronizeResponse> response);
  void Apply(const v1::SynchronizeResponse& response);
  v1::SynchronizeRequest Request() const;
  bool AllEnded() const;
  void Quit(int status);
  void ExitIfQuiet();
  absl::Duration Backoff(int failures);

  // Implemented in worker_attempt.cc.
  void Add(const Desired& desired);
  void BeginNext();
  void Begin(const AttemptPointer& attempt);
  void Launch(const AttemptPointer& attempt);
  void Stop(const AttemptPointer& attempt);
  void Abandon(const AttemptPointer& attempt);
  void OnRanksChanged(const AttemptPointer& attempt);
  void End(const AttemptPointer& attempt);
  void Fail(const AttemptPointer& attempt, v1::Attempt::Cause cause, int status, std::string message);
  void SendSoon(const AttemptPointer& attempt, absl::Duration within);
  void Send(const AttemptPointer& attempt);
  void OnAnswer(const AttemptPointer& attempt, const v1::ReportEventsRequest& sent,
                const absl::StatusOr<v1::ReportEventsResponse>& answer);
  void EndIfDrained(const AttemptPointer& attempt);

  Site& site_;
  World& world_;
  const std::string allocation_, node_;
  const int node_index_;
  const std::string instance_;
  std::function<void(int)> exited_;
  std::map<std::string, AttemptPointer> attempts_;
  const int queue_limit_;
  std::vector<AttemptPointer> turns_;  // attempts that begin one after another
  int64_t generation_ = 0;
  bool terminate_ = false, leaving_ = false, quitting_ = false, goodbye_ = false, leave_timer_ = false;
  int status_ = 0;
  uint64_t sync_number_ = 0, timer_number_ = 0;
  absl::Duration sync_due_ = absl::InfiniteDuration();
  absl::Duration sync_sent_ = absl::ZeroDuration(), last_contact_;
  int failures_ = 0;
  Timers timers_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();
};

// The workers of one job; the ranks are steps of the job and end with it.
std::unique_ptr<JobProcesses> LaunchWorkers(Site& site, const server::JobRequest& request,
                                            std::vector<std::string> nodes,
                                            std::function<void(int status)> ended);

}  // namespace scalelab::simulation
