// Every decision of the coordinator, as pure code: (state, event, now) -> new state + effects. No I/O, no
// locks, no clock, no random numbers; called from one thread at a time.
//
//   run:      QUEUED -> RUNNING -> SUCCEEDED | FAILED | CANCELLED      (RUNNING -> QUEUED: another attempt)
//   attempt:  ASSIGNED -> RUNNING -> SUCCEEDED | FAILED | CANCELLED    (STOPPING before CANCELLED)
//   allocation: INTENDED -> PENDING -> RUNNING -> RELEASING -> ENDED
//
// A run has at most one attempt that is not final. An attempt whose worker is silent ends only when the
// scheduler reports the end of its allocation: until then its processes may be alive. Then the rest of its event files is
// read, and decides whether it has succeeded.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "db/archive/archive_ids.h"
#include "server/core/effects.h"
#include "server/core/ingest.h"
#include "server/core/state.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

struct LifecycleOptions {
  std::string runs_dir;  // attempt directories are <runs_dir>/<study>/<run>/<token>
  // Attempt directories are <runs_dir>/<owner>/<study>/<run>/<token>, because jobs run under the account of the owner.
  bool runs_by_owner = false;
  // Silence of a worker after which its allocation is cancelled, although the scheduler does not report the end
  // of its job. Long, because a worker may be silent for other reasons than its end: a network or a file system
  // that hangs. While the job is suspended, no time passes.
  db::Micros worker_timeout = 900'000'000;
  // A worker that has reported within this time is alive, even if the scheduler does not list its job.
  db::Micros recent_report = 30'000'000;
  // Time in which the scheduler must report whether the job of an interrupted attempt continues.
  db::Micros hold_timeout = 10'000'000;
  // Time after which the allocation of an attempt that does not stop is cancelled.
  db::Micros stop_timeout = 20'000'000;
  Policy policy;
  // Number of allocations in a row that end before they serve an attempt, after which their runs fail.
  int max_failed_allocations = 8;
  // Number of attempts in a row that end with STORAGE_ERROR, after which their study is paused.
  int max_storage_errors = 3;
  // A study is paused when its first runs, as many as this, have all failed with the same cause.
  int same_failures = 5;
  // Read the rest of the event files of an attempt whose workers are gone before it ends.
  bool read_events = false;
  // Let jobs exclude nodes on which attempts fail, see BadNodes. For schedulers with more than one node.
  bool avoid_nodes = false;
  // Limits of reading events: of attempts that are read at the same time, of the time without an answer, and of the time and the
  // bytes for one attempt. An attempt that exceeds a limit ends without the rest.
  int max_reads = 8;
  db::Micros read_timeout = 60'000'000;
  db::Micros recovery_timeout = 600'000'000;
  int64_t recovery_bytes = int64_t{4} << 30;
  // Whether nodes are calibrated for studies that do not set noise_guard.calibrate.
  bool noise_guard = false;
  // Whether Effects::assess is acted on: blocks of studies with adaptive_repeats then begin only when they are needed.
  bool assess = false;
  std::function<std::string()> new_token;  // returns a new UUID at each call
  // Returns the framework environment of an engine, or nothing for an engine without one. If the function is
  // not set, no engine has one. Never blocks.
  std::function<std::optional<v1::FrameworkEnvironment>(const std::string& engine)> environment_of;
};

// A study ready to be stored: checked and expanded outside the core thread. Ids are not set yet.
struct NewStudy {
  std::unique_ptr<LiveStudy> state;
  std::vector<db::CellValueRow> cell_values;
  std::vector<db::CellRow> cells;  // one for each of state->cells, then the excluded ones
};

// Returns the time before an allocation's end in which no run may need it: its workers are warned
// at its start.
db::Micros EndMargin(const LiveAllocation& allocation);
// Returns whether a run is expected to end before the allocation's time limit. The estimate is the longest
// run of its cell so far, or of the study if the cell has none, plus a tenth.
bool FitsInto(const LiveAllocation& allocation, const LiveStudy& study, int position, db::Micros now);

// An allocation to make.
struct NewAllocation {
  int64_t run_id = 0;  // with AllocationMode PER_RUN: its run; 0 for a group
  AllocationShape shape;
};

// Returns ALREADY_EXISTS, the error for a request id that belongs to a study with a different specification.
absl::Status RequestIdReused(const std::string& request_id, int64_t study_id);

// Implemented in eight files: users' requests, timeouts and bookkeeping in lifecycle.cc, reports of
// workers in lifecycle_workers.cc, start and end of attempts in lifecycle_attempts.cc, the end of attempts without
// workers in lifecycle_recovery.cc, the scheduler's jobs in lifecycle_jobs.cc, limits of failures and of use in
// lifecycle_retries.cc, charges, holds, priorities and drain mode in lifecycle_sharing.cc, blocks of adaptive_repeats in
// lifecycle_repeats.cc.
class Lifecycle {
 public:
  Lifecycle(LifecycleOptions options, State& state) : options_(std::move(options)), state_(state) {
    Configure(options_.policy, options_.worker_timeout);
  }
  // Changes options.
  void Configure(const Policy& policy, db::Micros worker_timeout);

  // Returns the id of the new study, or of the study that was made with this request id before. Returns
  // ALREADY_EXISTS if that study has a different specification.
  absl::StatusOr<int64_t> Submit(NewStudy study, db::Micros now, Effects& fx);
  absl::Status CancelStudy(int64_t study_id, db::Micros now, Effects& fx);
  absl::Status CancelRun(int64_t study_id, int64_t run_id, db::Micros now, Effects& fx);
  // Returns FAILED_PRECONDITION if the study is not final.
  absl::Status DeleteStudy(int64_t study_id, Effects& fx);
  // Queues runs again that have failed: `run_id`, which may also be cancelled, or all if it is 0. Their earlier
  // attempts no longer count for the limit of retries. `final_study` is the study as the database has it, for the
  // case that it is not live; `final_changes` is State::final_changes from before it was read. Returns ABORTED if
  // such a change came in between, FAILED_PRECONDITION if no run has failed.
  absl::Status Retry(int64_t study_id, int64_t run_id, std::unique_ptr<LiveStudy> final_study,
                     int64_t final_changes, db::Micros now, Effects& fx);
  // Ends the pause of a study; does nothing if it is not paused.
  absl::Status ResumeStudy(int64_t study_id, db::Micros now, Effects& fx);
  // Keeps attempts of a study from beginning until ReleaseStudy. Returns FAILED_PRECONDITION if it is final.
  absl::Status HoldStudy(int64_t study_id, db::Micros now, Effects& fx);
  absl::Status ReleaseStudy(int64_t study_id, db::Micros now, Effects& fx);
  // Returns FAILED_PRECONDITION if the study is final.
  absl::Status SetPriority(int64_t study_id, int priority, db::Micros now, Effects& fx);
  // Returns the first of `count` ids of each kind that nothing else will use; both are by db::Numbered.
  db::FirstIds ReserveIds(const db::IdCounts& count);
  // Starts or ends drain mode. Returns the number of live attempts.
  int SetDrain(bool on, const std::string& reason, db::Micros now, Effects& fx);

  // Records what a worker reports about its node. Returns UNAUTHENTICATED if the allocation is over,
  // INVALID_ARGUMENT if it has no node of this index.
  absl::Status Observe(const std::string& allocation_token, const v1::SynchronizeRequest& request,
                       db::Micros now, Effects& fx);
  // Returns the desired state of the worker of this node.
  v1::SynchronizeResponse Desired(const LiveAllocation& allocation, int node_index) const;

  // Takes parts of event files from a worker of an allocation. Returns one outcome for each part, in order: FENCED
  // for an attempt that is over, that belongs to another allocation or whose event files the coordinator reads.
  std::vector<v1::ReportEventsResponse::Stream> Ingest(const std::string& allocation_token,
                                                       std::vector<ParsedBatch> batches, Effects& fx);

  // Takes the answer to the request `number` of Effects::read for the attempt with this token.
  void EventsRead(const std::string& token, int64_t number, absl::StatusOr<EventPart> part, db::Micros now,
                  Effects& fx);

  // Takes the answer to a request of Effects::assess: queues further blocks, or skips them. After several errors in a row,
  // the next block is run.
  void Assessed(const AssessRequest& request, const absl::StatusOr<Assessment>& assessment, db::Micros now,
                Effects& fx);

  // Records the scheduler's answer to a submit.
  void JobSubmitted(const std::string& token, const absl::StatusOr<std::string>& external_id, db::Micros now,
                    Effects& fx);
  // Records the answer to a poll that was sent at `asked`.
  void JobsPolled(const std::vector<JobStatus>& jobs, db::Micros asked, db::Micros now, Effects& fx);

  // Lets the jobs of this owner be submitted, and cancelled, that wait for the next try.
  void TryAgain(const std::string& owner, db::Micros now);

  // Handles timeouts, then plans.
  void Tick(db::Micros now, Effects& fx);
  // Makes allocations for waiting studies; cheap when there are none.
  void Plan(db::Micros now, Effects& fx);
  // Puts all studies that need an allocation into the queue. Call it after the state was loaded.
  void UpdateQueue(db::Micros now);
  // Moves all timeouts by `gap`: time in which the coordinator was suspended and workers could not report, or by
  // which the wall clock was set (negative: backwards), which is `of_wall_clock`. Users are charged for the former.
  void MoveTimeouts(db::Micros gap, db::Micros of_wall_clock = 0);
  // Moves the timeouts of workers only: by time in which the coordinator took no calls, and worked otherwise.
  void MoveWorkerTimeouts(db::Micros gap);
  // Returns the tokens of the jobs to poll.
  std::vector<std::string> JobsToPoll() const;
  // Returns whether a job is expected to start or end soon, so that polls should be frequent.
  bool JobsChange() const;

 private:
  // Holds back the blocks of a study with adaptive_repeats that have not begun, except for the first ones.
  void HoldLaterBlocks(LiveStudy& study) const;
  void AssessIfDue(LiveStudy& study, db::Micros now, Effects& fx);
  void RunMoreBlocks(LiveStudy& study, db::Micros now, Effects& fx);
  JobRequest RequestOf(const LiveAllocation& allocation) const;
  void SubmitJob(LiveAllocation& allocation, db::Micros now, Effects& fx);
  // Cancels the pending job of an allocation if it excludes nodes none of which is avoided any more: another job follows.
  void EndExclusion(LiveAllocation& allocation, db::Micros now, Effects& fx);
  void SetRunState(LiveStudy& study, int position, db::RunState to, db::Micros now, Effects& fx);
  void UpdateStudy(LiveStudy& study, db::Micros now, Effects& fx);
  void UpdateWaiting(LiveStudy& study, db::Micros now);
  // Returns the study's next allocation, or nothing if it needs none, has as many as it may have, or must wait after
  // earlier ones that failed.
  std::optional<NewAllocation> NextAllocation(const LiveStudy& study, db::Micros now) const;
  void LeavePending(LiveAllocation& allocation);
  // Charges the owner for the time that the allocation has been held and that is not charged yet.
  void Charge(LiveAllocation& allocation, db::Micros now, Effects& fx);
  // Stores until when users are charged for allocations, after the wall clock was set.
  void StoreMovedCharge(LiveAllocation& allocation, Effects& fx);
  // Returns why no attempt of the study may begin; empty if one may.
  std::string WhyNotBegin(const LiveStudy& study) const;
  // Releases an allocation that has no attempt, if no attempt of its study may begin.
  void Withdraw(LiveAllocation& allocation, db::Micros now, Effects& fx);
  void WithdrawAll(LiveStudy& study, db::Micros now, Effects& fx);
  void EnforceGpuLimit(LiveStudy& study, db::Micros now, Effects& fx);
  void Pause(LiveStudy& study, std::string reason, db::Micros now, Effects& fx);
  // Returns what the nodes of an attempt that has ended showed of other load, with reasons if that makes it noisy, and
  // keeps it for later attempts.
  std::vector<v1::NodeNoise> TakeNoise(const LiveAttempt& attempt);
  // Returns the state of an attempt whose ranks have all finished. If it was noisy, also sets `cause` and `message`.
  db::AttemptState ConsiderNoise(const LiveStudy& study, int position,
                                 const std::vector<v1::NodeNoise>& noise, db::Cause& cause,
                                 std::string& message) const;
  void PauseIfAllFail(LiveStudy& study, db::Cause cause, const std::string& message, db::Micros now,
                      Effects& fx);
  void CountFailedAllocation(LiveStudy& study, int64_t run_id, db::Cause cause, const std::string& reason,
                             db::Micros now, Effects& fx);
  void Assign(LiveAllocation& allocation, db::Micros now, Effects& fx);
  // Return the position of the run that the allocation serves next, or -1.
  void AssignAhead(LiveAllocation& allocation, db::Micros now, Effects& fx);
  int64_t AddAttempt(LiveAllocation& allocation, LiveStudy& study, int position, db::Micros now, Effects& fx);
  void ServeNext(LiveAllocation& allocation, int64_t ended, db::Micros now);
  int Choose(const LiveStudy& study, const LiveAllocation& allocation, db::Micros now) const;
  int ChooseOfGroup(const LiveStudy& study, const LiveAllocation& allocation, db::Micros now) const;
  std::string WhyNoRun(const LiveStudy* study, const LiveAllocation& allocation) const;
  // Returns whether another allocation of the group has served attempts: allocations that fail are not the study's fault.
  bool OthersServe(const LiveStudy& study) const;
  void ObserveReported(LiveAttempt& attempt, const v1::SynchronizeRequest& request);
  void ObserveAttempt(LiveAllocation& allocation, const WorkerState& worker,
                      const v1::SynchronizeRequest& request, db::Micros now, Effects& fx);
  void EndAttemptElsewhere(const LiveAllocation& allocation, const v1::SynchronizeRequest& request,
                           db::Micros now, Effects& fx);
  void Conclude(LiveAllocation& allocation, LiveAttempt& attempt, db::Micros now, Effects& fx);
  void RecordHardware(LiveAttempt& attempt, Effects& fx);
  // Adds a part of a rank's event file. Returns false if it begins after the durable position.
  bool Append(LiveAttempt& attempt, ParsedBatch batch, Effects& fx);
  void RecordCheckpoints(LiveAttempt& attempt, const ParsedBatch& batch, Effects& fx);
  // Ends an attempt whose workers are gone, when the rest of its event files has been read: with this cause, unless the
  // events show that it has succeeded.
  void EndWithoutWorkers(LiveAttempt& attempt, db::Cause cause, std::string message, db::Micros now,
                         Effects& fx);
  void ReadEvents(db::Micros now, Effects& fx);
  void EndSlowRecoveries(db::Micros now, Effects& fx);
  std::string WhyTooSlow(const LiveAttempt& attempt, db::Micros now) const;
  void EndRecovery(LiveAttempt& attempt, const std::string& problem, db::Micros now, Effects& fx);
  void CancelIfSilent(LiveAllocation& allocation, db::Micros now, Effects& fx);
  bool HasRecentReport(const LiveAllocation& allocation, db::Micros now) const;
  std::vector<v1::NodeInfo> NodesOf(const LiveAttempt& attempt) const;
  // Returns whether the ranks of the attempt must report a finish event.
  bool NeedsFinish(const LiveAttempt& attempt) const;
  void EndAttempt(LiveAttempt& attempt, db::AttemptState state, db::Cause cause, std::string message,
                  db::Micros now, Effects& fx);
  void StopAttempt(LiveAttempt& attempt, db::Micros now, Effects& fx);
  void Release(LiveAllocation& allocation, const std::string& reason, db::Micros now, Effects& fx);
  void EndJob(LiveAllocation& allocation, db::Micros now, Effects& fx);
  void EndAllocation(LiveAllocation& allocation, db::Cause cause, const std::string& reason, db::Micros now,
                     Effects& fx);
  // Fails the queued run, or all queued runs of the study if `run_id` is 0.
  void FailQueued(LiveStudy& study, int64_t run_id, db::Cause cause, const std::string& message,
                  db::Micros now, Effects& fx);
  void Wake(LiveAllocation& allocation, Effects& fx);

  LifecycleOptions options_;
  State& state_;
};

}  // namespace scalelab::server
