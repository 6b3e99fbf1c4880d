// The part of an attempt that runs on this node: its directory, its processes and its events.
//
//               started            processes gone         all events durable (or fenced)
//   kPreparing ---------> kRunning --------------> kDraining ---------------------------> kEnded
//       |                                                                                   ^
//       +------------------ preparation or start failed: nothing to drain ------------------+
//
// The attempt's first node launches all processes. On the other nodes the attempt is kRunning from the
// beginning: they only follow the event files of their ranks, and the coordinator ends the attempt there
// with a stop.
//
// An attempt that waits for its turn is kPreparing and has not begun.
//
// All methods and callbacks run on the event loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "scalelab/v1/worker.pb.h"
#include "worker/event_follower.h"
#include "worker/framework.h"
#include "worker/launcher.h"
#include "worker/noise/attempt_meter.h"
#include "worker/output_metrics.h"
#include "worker/power/power_sampler.h"
#include "worker/power/run_power.h"
#include "worker/process/output_limit.h"
#include "worker/process/process.h"
#include "worker/process/tagged_processes.h"
#include "worker/provenance.h"

namespace scalelab::worker {

// The objects that all attempts of a worker share. Must outlive the attempts.
struct AttemptHost {
  EventLoop& loop;
  Processes& processes;
  EventFollower& follower;
  Provenance& provenance;
  const Frameworks& frameworks;
  const LaunchHost& launch;
  std::string node;                          // the scheduler's name of this node
  std::string allocation;                    // token
  int64_t output_limit = int64_t{64} << 20;  // in bytes, for each output file of a rank, see output_limit.h
  // Returns the CPU seconds of the worker and of the processes that it has started; may be empty.
  AttemptMeter::OwnCpu own_cpu = {};
  PowerSampler* power = nullptr;  // null: the energy of attempts is not measured
  // Returns the processes with this tag. If this function is empty, the processes of this machine are used.
  std::function<std::unique_ptr<TaggedProcesses>(const std::string& tag)> tagged = {};
};

class Attempt {
 public:
  using Desired = DesiredAttempt;
  enum class Phase { kPreparing, kRunning, kDraining, kEnded };

  // Calls `changed` whenever Status() changes, but never from inside a method of this class.
  Attempt(const AttemptHost& host, Desired desired, std::function<void()> changed);
  ~Attempt();

  // Makes the directory and the files that an attempt needs before its launch. Begin does this otherwise.
  void Prepare();
  // Prepares and launches the attempt. Must be called once. If the desired state is already a stop, starts
  // nothing; ends processes that an earlier worker or another node has started, and delivers their events. If
  // launch.json shows that an earlier worker launched the attempt, does not launch it again: sends the events
  // that were written, and ends the attempt as WORKER_LOST. `before` is the last calibration of the node, if
  // there is one.
  void Begin(const std::optional<v1::Calibration>& before = std::nullopt);
  // Sends SIGTERM now and SIGKILL after `grace`.
  void Stop(absl::Duration grace);
  // Records that the ranks have ended without an error on the first node. Must be called before Stop. Has
  // no effect before Begin.
  void RanksFinished() { ranks_finished_ = begun_; }
  bool ranks_finished() const { return ranks_finished_; }
  // Returns true at the first call after the processes that this node started have ended. On a node that
  // started none, returns true at the first call after it was stopped because the ranks have finished.
  bool TakeProcessesGone();
  // Delays the report of the attempt's end until a calibration is added.
  void AwaitCalibration() { awaits_calibration_ = true; }
  void AddCalibration(const v1::Calibration& after);
  // Stops an attempt so that another one can continue the run: sends SIGUSR1, which requests a
  // checkpoint, and stops the remaining processes some time later. Does the same as Stop if the run
  // writes no checkpoints.
  void StopAfterCheckpoint(absl::Duration grace);
  // Stops the attempt and discards its reports: it ends as soon as its processes are gone.
  void Abandon(absl::Duration grace);

  v1::SynchronizeRequest::AttemptStatus Status() const;
  Phase phase() const { return phase_; }
  // Returns whether it has ended and its report is complete: the versions of the trainer that it ran, the difference of
  // its code and the calibration after it are known.
  bool reports_end() const {
    // An abandoned attempt reports nothing, so it waits for nothing.
    return phase_ == Phase::kEnded &&
           (abandoned_ || (!AwaitsVersions() && !AwaitsDiff() && !awaits_calibration_));
  }
  bool stopping() const { return stopping_; }
  bool abandoned() const { return abandoned_; }
  bool begun() const { return begun_; }
  // Returns whether its processes may be alive.
  bool busy() const { return begun_ && (phase_ == Phase::kPreparing || phase_ == Phase::kRunning); }
  bool awaits_calibration() const { return awaits_calibration_; }
  const std::string& token() const { return desired_.token(); }
  const Desired& desired() const { return desired_; }

 private:
  bool AwaitsVersions() const;
  bool AwaitsDiff() const;
  bool LaunchedBefore() const;
  absl::Status MakePlan();
  absl::Status WriteRecords();
  bool TakeCode();
  void RecordProvenance();
  absl::Status WriteLaunch();
  void OnStarted(absl::StatusOr<int> pid);
  void OnEnded(const JobResult& result);
  void Conclude(const JobResult& result);
  void FinishOutputMetrics();
  void EndRanksHere(absl::Duration grace);
  EventFollower::Observe MeasurePower(int ranks);
  void Drain();
  void AddProblem(const std::string& problem);
  void End();
  void Fail(v1::Attempt::Cause cause, int exit_status, std::string message);
  void WriteExit();
  std::string Path(const std::string& name) const { return desired_.directory() + "/" + name; }

  const AttemptHost& host_;
  const Desired desired_;
  std::function<void()> changed_;
  Phase phase_ = Phase::kPreparing;
  bool begun_ = false;
  bool stopping_ = false;
  bool abandoned_ = false;
  bool followed_ = false;
  bool launches_ = true;
  bool ending_ranks_ = false;
  // The result or the error of Prepare; absent before.
  std::optional<absl::Status> prepared_;
  v1::Attempt::Cause unprepared_ = v1::Attempt::CAUSE_UNSPECIFIED;
  LaunchPlan plan_;
  Code code_;                                      // code of a user's program when it was prepared
  std::unique_ptr<OutputMetrics> output_metrics_;  // null unless the study extracts metrics
  std::string launcher_;
  OutputLimit output_limit_;
  std::unique_ptr<TaggedProcesses> ranks_here_;  // under Slurm: all ranks on this node
  EventLoop::TimerId settle_timer_ = 0, drain_timer_ = 0, checkpoint_timer_ = 0;
  uint64_t job_ = 0;                      // 0: no job is running
  absl::Duration started_at_, run_time_;  // EventLoop::Now; time until the last process was gone
  int exit_status_ = 0;
  v1::Attempt::Cause cause_ = v1::Attempt::CAUSE_UNSPECIFIED;
  std::string message_;
  std::map<std::string, std::string> software_;  // software of the ranks; known when they have ended
  AttemptMeter meter_;
  std::shared_ptr<const PowerHistory> power_;  // null: nothing is recorded
  v1::NodeNoise noise_;
  bool ran_ = false;  // the next TakeProcessesGone returns true, unless processes may be alive
  bool ranks_finished_ = false;
  bool awaits_calibration_ = false;
};

}  // namespace scalelab::worker
