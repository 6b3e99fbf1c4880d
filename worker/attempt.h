// One attempt on this node: its directory, its processes, its events.
//
//               started            processes gone         everything durable (or refused)
//   kPreparing ---------> kRunning --------------> kDraining ---------------------------> kEnded
//       |  cannot be prepared or started: nothing to drain                                  ^
//       +-----------------------------------------------------------------------------------+
//
// The attempt's first node launches. On the others an attempt is kRunning from the beginning and follows the
// files of its ranks there; that they are over it hears from the coordinator, as a stop.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "scalelab/v1/worker.pb.h"
#include "worker/event_follower.h"
#include "worker/framework.h"
#include "worker/launcher.h"
#include "worker/process/output_limit.h"
#include "worker/process/process.h"
#include "worker/provenance.h"
#include "worker/process/tagged_processes.h"

namespace scalelab::worker {

// What all attempts of a worker share; outlives them.
struct AttemptHost {
  EventLoop& loop;
  Processes& processes;
  EventFollower& follower;
  Provenance& provenance;
  const Frameworks& frameworks;
  const LaunchHost& launch;
  std::string node;                          // the scheduler's name for it
  std::string allocation;                    // token
  int64_t output_limit = int64_t{64} << 20;  // bytes that one output of a rank may take, see output_limit.h
};

class Attempt {
 public:
  using Desired = DesiredAttempt;
  enum class Phase { kPreparing, kRunning, kDraining, kEnded };

  // `changed` is called, never from inside a method of this class, whenever status() says something new.
  Attempt(const AttemptHost& host, Desired desired, std::function<void()> changed);
  ~Attempt();

  // Prepares and launches; of one that is to be stopped nothing is started. An attempt whose directory says
  // that it was launched before (by a worker that died) is not launched again: what it has written is sent,
  // and it has ended as WORKER_LOST.
  void Begin();
  // TERM now, KILL after the grace.
  void Stop(absl::Duration grace);
  // Stop, and nothing that it reports matters any more: has ended when its processes are gone.
  void Abandon(absl::Duration grace);

  v1::SynchronizeRequest::AttemptStatus Status() const;
  Phase phase() const { return phase_; }
  bool stopping() const { return stopping_; }
  bool abandoned() const { return abandoned_; }
  const std::string& token() const { return desired_.token(); }

 private:
  absl::Status Prepare(LaunchPlan* plan);
  absl::Status WriteLaunch(const LaunchPlan& plan);
  void OnStarted(absl::StatusOr<int> pid);
  void OnEnded(const JobResult& result);
  void Conclude(const JobResult& result);
  void EndRanksHere(absl::Duration grace);
  void Drain();
  void End();
  void Fail(v1::Attempt::Cause cause, int exit_status, std::string message);
  void WriteExit();
  std::string Path(const std::string& name) const { return desired_.directory() + "/" + name; }

  const AttemptHost& host_;
  const Desired desired_;
  std::function<void()> changed_;
  Phase phase_ = Phase::kPreparing;
  bool stopping_ = false;
  bool abandoned_ = false;
  bool followed_ = false;
  bool launches_ = true;
  bool ending_ranks_ = false;
  std::string launcher_;
  OutputLimit output_limit_;
  TaggedProcesses ranks_here_;  // under Slurm: this node's, whoever launched them
  EventLoop::TimerId settle_timer_ = 0;
  uint64_t job_ = 0;  // 0: nothing was started
  int exit_status_ = 0;
  v1::Attempt::Cause cause_ = v1::Attempt::CAUSE_UNSPECIFIED;
  std::string message_;
  std::map<std::string, std::string> software_;  // what the ranks trained with, once they are gone
};

}  // namespace scalelab::worker
