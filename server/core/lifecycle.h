// Makes all decisions of the coordinator: (state, event, now) -> new state + effects. The code is pure: it
// has no I/O, no locks, no clock and no random numbers. It may be called from one thread at a time.
//
//   run:      QUEUED -> RUNNING -> SUCCEEDED | FAILED | CANCELLED      (RUNNING -> QUEUED: another attempt)
//   attempt:  ASSIGNED -> RUNNING -> SUCCEEDED | FAILED | CANCELLED    (STOPPING before CANCELLED)
//   allocation: INTENDED -> PENDING -> RUNNING -> RELEASING -> ENDED
//
// A run has at most one attempt that is not final. An attempt whose worker is silent ends only when the
// scheduler reports the end of its allocation, because its processes may be alive until then. Then the
// coordinator reads the rest of its event files, which show whether the attempt has succeeded.
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

struct Summary;

struct LifecycleOptions {
  std::string runs_dir;  // attempt directories are <runs_dir>/<study>/<run>/<token>
  // Attempt directories are <runs_dir>/<owner>/<study>/<run>/<token>, because jobs run under the account of the owner.
  bool runs_by_owner = false;
  // Time without a report of a worker after which its allocation is cancelled, although the scheduler does
  // not report the end of its job. The time is long, because a network or a filesystem may block for some
  // time. Time in which the job is suspended does not count.
  db::Micros worker_timeout = 900'000'000;
  // A worker that has reported within this time is alive, even if the scheduler does not list its job.
  db::Micros recent_report = 30'000'000;
  // Time that the coordinator waits until the scheduler reports whether the job of an
  // interrupted attempt continues.
  db::Micros hold_timeout = 10'000'000;
  // Time after which the allocation of an attempt that does not stop is cancelled. If other runs need the
  // allocation, time does not count in which a worker may not have received the request to stop.
  db::Micros stop_timeout = 20'000'000;
  Policy policy;
  // Runs fail after this number of consecutive allocations that end before they execute an attempt.
  int max_failed_allocations = 8;
  // An allocation fails after the scheduler has accepted its job this number of times, and each time then did
  // not have the job.
  int max_forgotten = 8;
  // Runs fail after their job was submitted this number of times in a row with the error UNKNOWN (see Scheduler), which
  // takes about a week with the longest delay of 5 minutes. There is no such limit for quotas, and for a scheduler
  // that does not answer.
  int max_unknown_errors = 2000;
  // A study is paused after this number of consecutive attempts, of the study or of one of its runs, that
  // end with STORAGE_ERROR.
  int max_storage_errors = 3;
  // A study is paused if this number of its first runs have all failed with the same cause.
  int same_failures = 5;
  // Whether to read the rest of the event files of an attempt before it ends, if its workers have ended.
  bool read_events = false;
  // Whether jobs exclude nodes on which attempts fail, see BadNodes. For schedulers with more than one node.
  bool avoid_nodes = false;
  // Limits of reading event files: number of attempts that are read at the same time, and of those below one
  // directory of runs, whose filesystem may hang.
  int max_reads = 16;
  int max_reads_of_directory = 8;
  // Time after which an attempt ends without the rest of its events, if the filesystem does not respond or
  // returns errors.
  db::Micros read_timeout = 60'000'000;
  // Time and bytes for one attempt, after which its files are read slowly, so that they do not delay those of
  // other attempts. An attempt also ends without the rest of its events if requests read nothing for this
  // time.
  db::Micros recovery_timeout = 600'000'000;
  int64_t recovery_bytes = int64_t{4} << 30;
  // Whether nodes are calibrated for studies that do not set noise_guard.calibrate.
  bool noise_guard = false;
  // Whether the caller executes Effects::assess. If so, later blocks of studies with adaptive_repeats begin
  // only if they are needed.
  bool assess = false;
  std::function<std::string()> new_token;  // returns a new UUID at each call
  // Returns the framework environment of an engine, or nothing for an engine without an environment. If the
  // function is empty, no engine has an environment. Must not block.
  std::function<std::optional<v1::FrameworkEnvironment>(const std::string& engine)> environment_of;
  // If a job still exists after this number of cancels, `explain` and the log report it. With the delays
  // between the cancels (5 s, doubled up to 5 minutes), this takes about 15 minutes. The job is still polled,
  // and cancelled every 5 minutes, until it has ended.
  int max_cancels = 8;
};

// A study that was checked and expanded outside the core thread, and can be stored. Its ids are not set yet.
struct NewStudy {
  std::unique_ptr<LiveStudy> state;
  std::vector<db::CellValueRow> cell_values;
  std::vector<db::CellRow> cells;  // one for each of state->cells, followed by excluded cells
  std::string study_file;          // the text to store; empty: none
};

// Returns the length of the time before an allocation's end in which no run should need the allocation. Slurm
// warns the workers at the start of this time.
db::Micros EndMargin(const LiveAllocation& allocation);
// Returns whether a run is expected to end before the allocation's time limit. The estimate is 1.1 times the
// longest run of its cell so far, or of the study if the cell has none.
bool FitsInto(const LiveAllocation& allocation, const LiveStudy& study, int position, db::Micros now);

// Returns that the job of an allocation with `cancel_failed` has not ended, why, and what an operator can do.
std::string FailedCancelText(const LiveAllocation& allocation);

// An allocation to make.
struct NewAllocation {
  int64_t run_id = 0;  // the run of the allocation with AllocationMode PER_RUN; 0 for a group
  AllocationShape shape;
};

// Returns ALREADY_EXISTS, the error for a request id that belongs to a study with a different specification.
absl::Status RequestIdReused(const std::string& request_id, int64_t study_id);

// The decisions of the coordinator. The implementation is in eight files:
//   lifecycle.cc           requests of users, timeouts and bookkeeping
//   lifecycle_workers.cc   reports of workers
//   lifecycle_attempts.cc  start and end of attempts
//   lifecycle_recovery.cc  the end of attempts without workers
//   lifecycle_jobs.cc      the scheduler's jobs
//   lifecycle_retries.cc   limits of failures and of use
//   lifecycle_sharing.cc   charges, holds, priorities and drain mode
//   lifecycle_repeats.cc   blocks of adaptive_repeats
class Lifecycle {
 public:
  Lifecycle(LifecycleOptions options, State& state) : options_(std::move(options)), state_(state) {
    Configure(options_.policy, options_.worker_timeout);
  }
  // Changes options.
  void Configure(const Policy& policy, db::Micros worker_timeout);

  // Adds a study. Returns its id, or the id of the study that an earlier call with the same request id has
  // added. Returns ALREADY_EXISTS if the earlier study has a different specification.
  absl::StatusOr<int64_t> Submit(NewStudy study, db::Micros now, Effects& fx);
  absl::Status CancelStudy(int64_t study_id, db::Micros now, Effects& fx);
  absl::Status CancelRun(int64_t study_id, int64_t run_id, db::Micros now, Effects& fx);
  // Deletes a study. Returns FAILED_PRECONDITION if the study is not final.
  absl::Status DeleteStudy(int64_t study_id, Effects& fx);
  // Queues the run `run_id` again, which must have failed or been cancelled, or all failed runs of the study
  // if `run_id` is 0. Their earlier attempts no longer count for the limit of retries. If the study is not
  // live, `final_study` must be the study from the database, and `final_changes` the value of
  // State::final_changes before it was read. Returns ABORTED if a final study has changed since then, and
  // FAILED_PRECONDITION if no run has failed.
  absl::Status Retry(int64_t study_id, int64_t run_id, std::unique_ptr<LiveStudy> final_study,
                     int64_t final_changes, db::Micros now, Effects& fx);
  // Ends the pause of a study; does nothing if it is not paused.
  absl::Status ResumeStudy(int64_t study_id, db::Micros now, Effects& fx);
  // Prevents attempts of a study from beginning, until ReleaseStudy. Returns FAILED_PRECONDITION if the
  // study is final.
  absl::Status HoldStudy(int64_t study_id, db::Micros now, Effects& fx);
  absl::Status ReleaseStudy(int64_t study_id, db::Micros now, Effects& fx);
  // Changes the priority of a study. Returns FAILED_PRECONDITION if the study is final.
  absl::Status SetPriority(int64_t study_id, int priority, db::Micros now, Effects& fx);
  // Reserves `count` ids of each kind (db::Numbered). Returns the first id of each kind.
  db::FirstIds ReserveIds(const db::IdCounts& count);
  // Starts or ends drain mode. Returns the number of live attempts.
  int SetDrain(bool on, const std::string& reason, db::Micros now, Effects& fx);

  // Records the report of a worker about its node. Returns UNAUTHENTICATED if the allocation has ended, and
  // INVALID_ARGUMENT if it has no node with this index.
  absl::Status Observe(const std::string& allocation_token, const v1::SynchronizeRequest& request,
                       db::Micros now, Effects& fx);
  // Returns the desired state of the worker of this node.
  v1::SynchronizeResponse Desired(const LiveAllocation& allocation, int node_index) const;

  // Stores parts of event files from a worker of an allocation. Returns one outcome for each part, in order.
  // The outcome is FENCED if the attempt has ended, belongs to another allocation, or if the coordinator
  // reads its event files.
  std::vector<v1::ReportEventsResponse::Stream> Ingest(const std::string& allocation_token,
                                                       std::vector<ParsedBatch> batches, Effects& fx);

  // Handles the response to the request `number` of Effects::read for the attempt with this token.
  void EventsRead(const std::string& token, int64_t number, absl::StatusOr<EventPart> part, db::Micros now,
                  Effects& fx);

  // Handles the response to a request of Effects::assess: queues further blocks or skips them. After several
  // consecutive errors, queues the next block.
  void Assessed(const AssessRequest& request, const absl::StatusOr<Assessment>& assessment, db::Micros now,
                Effects& fx);

  // Handles the scheduler's response to a submit.
  void JobSubmitted(const std::string& token, const absl::StatusOr<std::string>& external_id, db::Micros now,
                    Effects& fx);
  // Handles the scheduler's response to a call that cancelled the jobs with these tokens.
  void JobsCancelled(const std::vector<std::string>& tokens, const absl::Status& status);
  // Handles the scheduler's response to a poll that was sent at `asked`.
  void JobsPolled(const std::vector<JobStatus>& jobs, db::Micros asked, db::Micros now, Effects& fx);

  // Ends the delays of this owner, whose agent has connected: jobs that wait for the next try are submitted
  // or cancelled now, and event files are read now.
  void TryAgain(const std::string& owner, db::Micros now);

  // Handles timeouts, then plans.
  void Tick(db::Micros now, Effects& fx);
  // Makes allocations for waiting studies. Fast if there are none.
  void Plan(db::Micros now, Effects& fx);
  // Adds all studies that need an allocation to the queue. Must be called after the state was loaded.
  void UpdateQueue(db::Micros now);
  // Moves all timeouts by `gap`: the time for which the coordinator was suspended, when workers could not
  // report, plus `of_wall_clock`, the step by which the wall clock was set (negative: backwards). Users are
  // charged for the suspended time, but not for the step.
  void MoveTimeouts(db::Micros gap, db::Micros of_wall_clock = 0);
  // Moves only the timeouts of workers, by time in which the service handled no calls while
  // the coordinator worked.
  void MoveWorkerTimeouts(db::Micros gap);
  // Returns the tokens of the jobs to poll.
  std::vector<std::string> JobsToPoll() const;
  // Returns whether a job is expected to start or end soon, so that polls should be frequent.
  bool JobsChange() const;

 private:
  // Holds back the blocks of a study with adaptive_repeats that have not begun, except for the minimum
  // number of blocks.
  void HoldLaterBlocks(LiveStudy& study) const;
  void AssessIfDue(LiveStudy& study, db::Micros now, Effects& fx);
  void RunMoreBlocks(LiveStudy& study, db::Micros now, Effects& fx);
  JobRequest RequestOf(const LiveAllocation& allocation) const;
  void SubmitJob(LiveAllocation& allocation, db::Micros now, Effects& fx);
  // Cancels the pending job of an allocation if the job excludes nodes, and none of them is avoided any more.
  // Another job replaces it.
  void EndExclusion(LiveAllocation& allocation, db::Micros now, Effects& fx);
  void SetRunState(LiveStudy& study, int position, db::RunState to, db::Micros now, Effects& fx);
  void UpdateStudy(LiveStudy& study, db::Micros now, Effects& fx);
  void UpdateWaiting(LiveStudy& study, db::Micros now);
  // Returns the study's next allocation. Returns nothing if the study needs none, has reached its limit, or
  // must wait because earlier allocations failed.
  std::optional<NewAllocation> NextAllocation(const LiveStudy& study, db::Micros now) const;
  void LeavePending(LiveAllocation& allocation);
  // Updates StudyAllocations of its study. Must be called after each change of what StudyAllocations records.
  void UpdateAllocation(const LiveAllocation& allocation);
  // Charges the owner for the use of the allocation since the last charge.
  void Charge(LiveAllocation& allocation, db::Micros now, Effects& fx);
  // Stores the time until which the allocation is charged, if it was moved because the wall clock was set.
  void StoreMovedCharge(LiveAllocation& allocation, Effects& fx);
  // Returns why no attempt of the study may begin; "" if one may begin.
  std::string WhyNotBegin(const LiveStudy& study) const;
  // Releases an allocation that has no attempt, if no attempt of its study may begin.
  void Withdraw(LiveAllocation& allocation, db::Micros now, Effects& fx);
  void WithdrawAll(LiveStudy& study, db::Micros now, Effects& fx);
  void EnforceGpuLimit(LiveStudy& study, db::Micros now, Effects& fx);
  void Pause(LiveStudy& study, std::string reason, db::Micros now, Effects& fx);
  // Returns the measured noise of the nodes of an attempt that has ended, with reasons if the attempt was
  // noisy. Keeps the values as references for later attempts.
  std::vector<v1::NodeNoise> TakeNoise(const LiveAttempt& attempt);
  // Returns the results of an attempt whose ranks have all finished.
  Summary ResultsOf(const LiveAttempt& attempt) const;
  // Returns the state of an attempt whose ranks have all finished. If it was noisy, also sets `cause` and `message`.
  db::AttemptState ConsiderNoise(const LiveStudy& study, int position,
                                 const std::vector<v1::NodeNoise>& noise, db::Cause& cause,
                                 std::string& message) const;
  void CountStorageErrors(LiveStudy& study, int position, db::Cause cause, const std::string& message,
                          db::Micros now, Effects& fx);
  void PauseIfAllFail(LiveStudy& study, db::Cause cause, const std::string& message, db::Micros now,
                      Effects& fx);
  void CountFailedAllocation(LiveStudy& study, int64_t run_id, db::Cause cause, const std::string& reason,
                             db::Micros now, Effects& fx);
  void Assign(LiveAllocation& allocation, db::Micros now, Effects& fx);
  // Return the position of the run that the allocation executes next, or -1.
  void AssignAhead(LiveAllocation& allocation, db::Micros now, Effects& fx);
  int64_t AddAttempt(LiveAllocation& allocation, LiveStudy& study, int position, db::Micros now, Effects& fx);
  void ServeNext(LiveAllocation& allocation, int64_t ended, db::Micros now);
  int Choose(const LiveStudy& study, const LiveAllocation& allocation, db::Micros now) const;
  int ChooseOfGroup(const LiveStudy& study, const LiveAllocation& allocation, db::Micros now) const;
  std::string WhyNoRun(const LiveStudy* study, const LiveAllocation& allocation) const;
  // Returns whether the allocation waits for a delayed run, because the run may begin soon.
  bool WaitsForDelayed(const LiveStudy& study, const LiveAllocation& allocation, db::Micros now) const;
  // Delays the next attempt of a run that is queued again after a failure.
  void Delay(LiveStudy& study, int position, db::Micros now);
  // Queues the delayed runs whose next attempt is due.
  void QueueDelayed(LiveStudy& study, db::Micros now, Effects& fx);
  // Returns whether another allocation of the group has executed attempts. If so, the study does not cause
  // allocations to fail.
  bool OthersServe(const LiveStudy& study) const;
  void ObserveReported(LiveAttempt& attempt, const v1::SynchronizeRequest& request);
  void ObserveAttempt(LiveAllocation& allocation, const WorkerState& worker,
                      const v1::SynchronizeRequest& request, db::Micros now, Effects& fx);
  void EndAttemptElsewhere(const LiveAllocation& allocation, const v1::SynchronizeRequest& request,
                           db::Micros now, Effects& fx);
  void Conclude(LiveAllocation& allocation, LiveAttempt& attempt, db::Micros now, Effects& fx);
  void ObserveStop(const LiveAllocation& allocation, int node, db::Micros now);
  void RecordHardware(LiveAttempt& attempt, Effects& fx);
  // Adds a part of a rank's event file. Returns false if it begins after the durable position.
  bool Append(LiveAttempt& attempt, ParsedBatch batch, Effects& fx);
  void RecordCheckpoints(LiveAttempt& attempt, const ParsedBatch& batch, Effects& fx);
  // Ends an attempt whose workers have ended, after the rest of its event files was read. The attempt fails
  // with `cause`, unless its events show that it has succeeded.
  void EndWithoutWorkers(LiveAttempt& attempt, db::Cause cause, std::string message, db::Micros now,
                         Effects& fx);
  void ReadEvents(db::Micros now, Effects& fx);
  void EndSlowRecoveries(db::Micros now, Effects& fx);
  std::string WhyTooSlow(const LiveAttempt& attempt, db::Micros now) const;
  void EndRecovery(LiveAttempt& attempt, std::string problem, db::Micros now, Effects& fx);
  bool IsNeededByOthers(const LiveAllocation& allocation) const;
  bool StopIsOverdue(const LiveAllocation& allocation, const LiveAttempt& attempt, db::Micros now) const;
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
  // Cancels a job that still exists after it was cancelled. After many cancels, also reports it.
  void CancelAgain(LiveAllocation& allocation, db::Micros now, Effects& fx);
  void EndAllocation(LiveAllocation& allocation, db::Cause cause, const std::string& reason, db::Micros now,
                     Effects& fx);
  // Ends an allocation whose job the scheduler does not accept, and fails the runs that no other allocation executes.
  void GiveUpJob(LiveAllocation& allocation, const std::string& reason, db::Micros now, Effects& fx);
  // Fails the queued run, or all queued runs of the study if `run_id` is 0.
  void FailQueued(LiveStudy& study, int64_t run_id, db::Cause cause, const std::string& message,
                  db::Micros now, Effects& fx);
  void Wake(LiveAllocation& allocation, Effects& fx);

  LifecycleOptions options_;
  State& state_;
};

}  // namespace scalelab::server
