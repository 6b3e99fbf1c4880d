// The faults of one simulation. Each seed enables a random part of them with random probabilities (swarm testing).
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tests/simulation/event_queue.h"
#include "tests/simulation/random.h"

namespace scalelab::simulation {

enum class Fault : int {
  // Of one message.
  kRequestLost,
  kReplyLost,
  kMessageDelayed,  // which also reorders messages
  kRequestDuplicated,
  // Faults of the machines and of the coordinator's process. They begin at random times.
  kPartition,      // of one node
  kCrash,          // the coordinator crashes between two steps
  kCrashInCommit,  // the coordinator crashes before or after a commit
  kCrashInCall,    // the coordinator crashes before or after a call of the scheduler
  kPowerCut,       // the coordinator's machine loses power: writes that were not synced are lost or torn
  kPowerCutInCommit,
  kProcessStopped,  // SIGSTOP and SIGCONT
  kDiskFull,
  kDatabaseLocked,
  kSlowDisk,
  kClockJump,
  kWorkerCrash,
  kWorkerHangs,
  kWorkerBlocked,  // the event loop, by a file server that does not answer
  kRankFails,
  kStorageError,
  kNodeFails,
  kCallsStuck,  // the coordinator's process runs, but handles no calls
  // Faults of the coordinator's reads of event files.
  kReadHangs,
  kReadFails,
  kReadSlow,
  // Of the scheduler.
  kSlurmAway,
  kSlurmSlow,
  kSubmitUnanswered,  // the job is accepted, the answer is an error
  kSubmitLate,  // the answer is an error, and the job is accepted minutes later: there may be a second one then
  kSubmitRefused,      // for a limit
  kSubmitRefusedEver,  // permanently
  kCancelFails,
  kJobForgotten,
  kJobPreempted,
  kJobRequeued,
  kJobSuspended,
  kLongCompleting,
  kCancelledOutside,
  // Of the agent of a user. Only a part of the seeds have one.
  kAgentCrash,
  kAgentAway,      // suspended
  kAgentCut,       // its connection is interrupted
  kAgentReplaced,  // by a second agent of the user
  kAgentSlow,      // a message of the coordinator or the agent is late
  kCount
};

const char* Name(Fault fault);

class Faults {
 public:
  Faults(Random& random, const EventQueue& queue);

  // Draws whether the fault occurs now, and counts it. Never after End().
  bool Occurs(Fault fault);
  // Returns whether this seed enables the fault.
  bool Enabled(Fault fault) const { return probability_[static_cast<size_t>(fault)] > 0; }
  // Draws the time until the next fault, for a kind of fault that begins at random times.
  absl::Duration Until(Fault fault);
  void Count(Fault fault) { ++counts_[static_cast<size_t>(fault)]; }
  absl::Duration End() const { return end_; }
  bool Over() const { return queue_.Steady() >= end_; }
  const std::array<int64_t, static_cast<size_t>(Fault::kCount)>& counts() const { return counts_; }
  // Returns whether jobs run through the agent of a user in this seed.
  bool HasAgent() const { return has_agent_; }
  // Returns the names of the faults that this seed enables.
  std::string EnabledNames() const;

 private:
  Random& random_;
  const EventQueue& queue_;
  absl::Duration end_;
  bool has_agent_ = false;
  std::array<double, static_cast<size_t>(Fault::kCount)> probability_{};
  std::array<int64_t, static_cast<size_t>(Fault::kCount)> counts_{};
};

}  // namespace scalelab::simulation
