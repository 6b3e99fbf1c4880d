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
  // Of the machines and the coordinator's process; they begin at random times.
  kPartition,      // of one node
  kCrash,          // of the coordinator, between two steps
  kCrashInCommit,  // of the coordinator, before or after the commit
  kCrashInCall,    // of the coordinator, before or after a call of the scheduler
  kPowerCut,       // of the coordinator's machine: what was not synced is lost, or torn
  kPowerCutInCommit,
  kProcessStopped,  // SIGSTOP and SIGCONT
  kDiskFull,
  kDatabaseLocked,
  kSlowDisk,
  kClockJump,
  kWorkerCrash,
  kWorkerHangs,
  kRankFails,
  kStorageError,
  kNodeFails,
  kCallsStuck,  // the coordinator's process runs, and takes no calls
  // Of reads of event files by the coordinator.
  kReadHangs,
  kReadFails,
  kReadSlow,
  // Of the scheduler.
  kSlurmAway,
  kSlurmSlow,
  kSubmitUnanswered,   // the job is accepted, the answer is an error
  kSubmitRefused,      // for a limit
  kSubmitRefusedEver,  // permanently
  kCancelFails,
  kJobForgotten,
  kJobPreempted,
  kJobRequeued,
  kJobSuspended,
  kLongCompleting,
  kCancelledOutside,
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
  // For faults that begin at random times: draws the time until the next one.
  absl::Duration Until(Fault fault);
  void Count(Fault fault) { ++counts_[static_cast<size_t>(fault)]; }
  absl::Duration End() const { return end_; }
  bool Over() const { return queue_.Steady() >= end_; }
  const std::array<int64_t, static_cast<size_t>(Fault::kCount)>& counts() const { return counts_; }
  // Returns the names of the faults that this seed enables.
  std::string EnabledNames() const;

 private:
  Random& random_;
  const EventQueue& queue_;
  absl::Duration end_;
  std::array<double, static_cast<size_t>(Fault::kCount)> probability_{};
  std::array<int64_t, static_cast<size_t>(Fault::kCount)> counts_{};
};

}  // namespace scalelab::simulation
