// Every decision the coordinator makes, as pure code: (state, event, now) -> new state + effects. No I/O, no
// locks, no clock, no randomness of its own; callable from one thread.
//
//   run:      QUEUED -> RUNNING -> SUCCEEDED | FAILED | CANCELLED      (RUNNING -> QUEUED: another attempt)
//   attempt:  ASSIGNED -> RUNNING -> SUCCEEDED | FAILED | CANCELLED    (STOPPING before CANCELLED)
//   allocation: INTENDED -> PENDING -> RUNNING -> RELEASING -> ENDED
//
// A run has at most one attempt that is not final, and an attempt whose worker is silent ends only when the
// scheduler says that its allocation is over: until then its processes may live.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/effects.h"
#include "server/core/ingest.h"
#include "server/scheduler/scheduler.h"
#include "server/core/state.h"

namespace scalelab::server {

struct LifecycleOptions {
  std::string runs_dir;                    // attempt directories are <runs_dir>/<study>/<run>/<token>
  db::Micros worker_timeout = 30'000'000;  // silence after which a worker's allocation is given up
  db::Micros start_timeout =
      120'000'000;  // in which every worker of an allocation that began must have spoken
  db::Micros hold_timeout =
      10'000'000;  // for the scheduler to say whether an interrupted attempt's job goes on
  db::Micros stop_timeout = 20'000'000;    // after which a stop that did not happen ends the allocation
  int max_pending_allocations = 4;         // asked for and not started; more would only undo our own order
  std::function<std::string()> new_token;  // a new UUID at each call
  // Where an engine's framework is; nothing for engines that have none, and for all when it is empty. Never
  // blocks.
  std::function<std::optional<v1::FrameworkEnvironment>(const std::string& engine)> environment_of;
};

// A study ready to be stored: checked and expanded outside the core thread. Ids are not set yet.
struct NewStudy {
  std::unique_ptr<StudyState> state;
  std::vector<db::CellRow> cells;  // one for each of state->cells, then the excluded ones
};

// Before its end, the time of an allocation that no run may need: its workers are warned then.
db::Micros EndMargin(const AllocationState& allocation);
// Whether a run can be expected to end before the allocation's time limit: judged by what runs of its cell,
// or if there were none, any runs of the study took, and a tenth more.
bool FitsInto(const AllocationState& allocation, const StudyState& study, int position, db::Micros now);

// ALREADY_EXISTS: the request id made another study from a different specification.
absl::Status RequestIdReused(const std::string& request_id, int64_t study_id);

// In four files: users' requests, time and bookkeeping in lifecycle.cc, what workers say in
// lifecycle_workers.cc, the beginning and end of attempts in lifecycle_attempts.cc, the scheduler in
// lifecycle_jobs.cc.
class Lifecycle {
 public:
  Lifecycle(LifecycleOptions options, State& state) : options_(std::move(options)), state_(state) {}

  // Id of the new study, or of the one that was made with this request id. ALREADY_EXISTS: that one was
  // different.
  absl::StatusOr<int64_t> Submit(NewStudy study, db::Micros now, Effects& fx);
  absl::Status CancelStudy(int64_t study_id, db::Micros now, Effects& fx);
  absl::Status CancelRun(int64_t study_id, int64_t run_id, db::Micros now, Effects& fx);

  // What a worker says of its node. UNAUTHENTICATED: the allocation is over.
  absl::Status Observe(const std::string& allocation_token, const v1::SynchronizeRequest& request,
                       db::Micros now, Effects& fx);
  // What the worker of this node should do.
  v1::SynchronizeResponse Desired(const AllocationState& allocation, int node_index) const;

  // Takes parts of event files. One outcome a part, in order.
  std::vector<v1::ReportEventsResponse::Stream> Ingest(std::vector<ParsedBatch> batches, Effects& fx);

  // What the scheduler answered to a submit.
  void JobSubmitted(const std::string& token, const absl::StatusOr<std::string>& external_id, db::Micros now,
                    Effects& fx);
  // `asked`: when the question was put.
  void JobsPolled(const std::vector<JobStatus>& jobs, db::Micros asked, db::Micros now, Effects& fx);

  // Whatever follows from time alone, and new allocations for what waits.
  void Tick(db::Micros now, Effects& fx);
  // New allocations for what waits; cheap when nothing does.
  void Plan(db::Micros now, Effects& fx);
  // After the coordinator itself stood still for `gap`: nobody else was silent.
  void Forgive(db::Micros gap);
  // Tokens of the jobs that the scheduler should be asked about.
  std::vector<std::string> JobsToPoll() const;
  // Whether a job is about to begin or to end, so that its state is of interest soon.
  bool JobsChange() const;

 private:
  JobRequest RequestOf(const AllocationState& allocation) const;
  void PutRun(StudyState& study, int position, Effects& fx);
  void SetRunState(StudyState& study, int position, db::RunState to, db::Micros now, Effects& fx);
  void UpdateStudy(StudyState& study, db::Micros now, Effects& fx);
  void UpdateWaiting(StudyState& study);
  void Assign(AllocationState& allocation, db::Micros now, Effects& fx);
  int Choose(const StudyState& study, const AllocationState& allocation, db::Micros now) const;
  void ObserveAttempt(AllocationState& allocation, const WorkerState& worker,
                      const v1::SynchronizeRequest& request, db::Micros now, Effects& fx);
  void Conclude(AllocationState& allocation, AttemptState& attempt, db::Micros now, Effects& fx);
  void WatchOver(AllocationState& allocation, db::Micros now, Effects& fx);
  bool Heard(const AllocationState& allocation, db::Micros now) const;
  std::vector<v1::NodeInfo> NodesOf(const AttemptState& attempt) const;
  void EndAttempt(AttemptState& attempt, db::AttemptState state, db::Cause cause, std::string message,
                  db::Micros now, Effects& fx);
  void StopAttempt(AttemptState& attempt, db::Micros now, Effects& fx);
  void Release(AllocationState& allocation, const std::string& reason, Effects& fx);
  void EndJob(AllocationState& allocation, Effects& fx);
  void EndAllocation(AllocationState& allocation, db::Cause cause, const std::string& reason, db::Micros now,
                     Effects& fx);
  void FailQueued(StudyState& study, const std::string& message, db::Micros now, Effects& fx);
  void Wake(AllocationState& allocation, Effects& fx);

  const LifecycleOptions options_;
  State& state_;
};

}  // namespace scalelab::server
