// The core thread. It handles all requests and events in rounds. In each round it decides (Lifecycle),
// commits all changes in one transaction, executes the effects and responds. A request is acknowledged only
// after its changes are durable. As one commit contains all requests of a round, throughput does not depend
// on the duration of an fsync.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "db/archive/archive_ids.h"
#include "db/store.h"
#include "server/core/event_reader.h"
#include "server/core/lifecycle.h"
#include "server/core/observer.h"
#include "server/core/state.h"
#include "server/scheduler/scheduler.h"
#include "server/time/clock.h"
#include "server/time/steady_mutex.h"

namespace scalelab::server {

// Options that can be changed while the coordinator runs.
struct CoordinatorTuning {
  absl::Duration worker_timeout = absl::Minutes(15);
  // Time between polls of the scheduler when nothing requests a poll.
  absl::Duration poll_interval = absl::Seconds(15);
  Policy policy;
};

struct CoordinatorOptions : CoordinatorTuning {
  std::string runs_dir;
  bool runs_by_owner = false;                    // see LifecycleOptions
  bool noise_guard = false;                      // see LifecycleOptions
  absl::Duration long_poll = absl::Seconds(10);  // longest time that a call of Synchronize is held
  // Least time between polls of the scheduler.
  absl::Duration min_poll_interval = absl::Milliseconds(50);
  // Reads the event files of attempts whose workers have ended. If null, these files are not read. Must
  // outlive the coordinator.
  EventReader* events = nullptr;
  // Counts commits and calls of the scheduler. May be null. Must outlive the coordinator.
  CoreObserver* observer = nullptr;
  // Decides whether a study with adaptive_repeats needs further blocks. Passes the decision to `done`, on any
  // thread, at most once. Must not block. If it is empty, all blocks are run.
  std::function<void(AssessRequest request, absl::AnyInvocable<void(absl::StatusOr<Assessment>)> done)>
      assess;
  const Clock* clock = &Clock::System();
  std::function<std::string(const std::string& allocation_token)> secret_for;
  std::function<std::string()> new_token;
  // See LifecycleOptions.
  std::function<std::optional<v1::FrameworkEnvironment>(const std::string& engine)> environment_of;
};

// All methods may be called from any thread. Callbacks run on the core thread, after the commit, or on the calling
// thread if the request is refused at once. They must not block, and must not read the store. RESOURCE_EXHAUSTED
// (the disk is full, or too many requests wait for the core thread), FAILED_PRECONDITION (the database was deleted
// or replaced, or cannot be written), DATA_LOSS (the database is damaged) and UNAVAILABLE (any other reason, or the
// coordinator is stopping) mean that the request could not be made durable and has changed nothing.
class Coordinator {
 public:
  template <typename T>
  using Done = absl::AnyInvocable<void(absl::StatusOr<T>)>;
  using DoneStatus = absl::AnyInvocable<void(absl::Status)>;
  // Called after each change of a study. `final` is true in the last call. Returns false to end the watch.
  using Watcher = absl::AnyInvocable<bool(const LiveStudy& study, const State& state, bool final)>;

  // `store` and `scheduler` must outlive the coordinator.
  Coordinator(CoordinatorOptions options, db::Store& store, Scheduler& scheduler);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Loads the state from the database and starts the threads.
  absl::Status Start();
  // Loads the state and starts no thread. For simulations, instead of Start(). The caller calls Step() and
  // StepScheduler() in place of the threads, from one thread at a time, and calls Stop() at the end.
  absl::Status StartWithoutThreads();
  // Handles the tasks that have arrived, and timeouts. Must be called when a task has arrived or
  // NextStep() is due.
  void Step();
  // Returns the time of the steady clock at which the next step is due, if no task arrives.
  absl::Duration NextStep() const;
  // Makes the oldest queued call of the scheduler. Returns false if there is none.
  bool StepScheduler() ABSL_LOCKS_EXCLUDED(scheduler_mutex_);
  // Responds to held calls, completes accepted requests and ends the threads. Workers continue to run, and
  // reconnect to the next coordinator. Waits at most `grace` for a call of the scheduler in flight. Returns whether
  // no such call is left. Otherwise a thread is blocked in it, and the coordinator, the scheduler and the observer must
  // exist until a further call of Stop returns true, or until the process ends.
  bool Stop(absl::Duration grace = absl::InfiniteDuration());

  void Submit(NewStudy study, Done<int64_t> done);
  void CancelStudy(int64_t study_id, DoneStatus done);
  void CancelRun(int64_t study_id, int64_t run_id, DoneStatus done);
  void DeleteStudy(int64_t study_id, DoneStatus done);
  // See Lifecycle::Retry.
  void Retry(int64_t study_id, int64_t run_id, std::unique_ptr<LiveStudy> final_study, int64_t final_changes,
             DoneStatus done);
  void ResumeStudy(int64_t study_id, DoneStatus done);
  void HoldStudy(int64_t study_id, DoneStatus done);
  void ReleaseStudy(int64_t study_id, DoneStatus done);
  void SetPriority(int64_t study_id, int priority, DoneStatus done);
  // Reserves ids for rows that are written without the coordinator. `count` has the number of ids of each
  // kind (db::Numbered). `done` gets the first id of each kind.
  void ReserveIds(const db::IdCounts& count, Done<db::FirstIds> done);
  // `done` gets the number of live attempts.
  void SetDrain(bool on, std::string reason, Done<int> done);
  void Synchronize(std::string allocation_token, v1::SynchronizeRequest request,
                   Done<v1::SynchronizeResponse> done);
  void Report(std::string allocation_token, std::vector<ParsedBatch> batches,
              Done<std::vector<v1::ReportEventsResponse::Stream>> done);
  // Calls `watcher` after each change of the study. If the study is not live, calls `not_live` with
  // NOT_FOUND; the database then has its final state.
  void Watch(int64_t study_id, Watcher watcher, DoneStatus not_live);
  // Changes options while the coordinator runs.
  void Configure(const CoordinatorTuning& tuning);
  // Calls `read` on the core thread with the state, or with null if the coordinator is stopping, cannot read the
  // database or has too many requests.
  void Read(absl::AnyInvocable<void(const State*)> read);
  // Calls `done` with the scheduler's view of the cluster, at most a few seconds old. May query the
  // scheduler, without a time limit. While the scheduler is known to be unavailable, `done` gets an error at
  // once: UNAVAILABLE, or the error of the last query.
  void View(Done<ClusterView> done);
  // Requests a poll of the scheduler, because the state of a job may have changed.
  void PollSoon();
  // Submits the jobs of this user that wait for the next try. Called when an agent of the user has connected.
  void AgentConnected(const std::string& user);
  // Records that the service handles calls of workers at this time. The service calls NoteServing once a
  // second. After it stops doing so, the timeouts of workers do not advance. They advance before the first
  // call of NoteServing.
  void NoteServing();
  // Returns whether the last call of NoteServing is recent, or there was none.
  bool TakesCalls() const;

 private:
  using Reply = absl::AnyInvocable<void(absl::Status)>;
  // A unit of work for the core thread.
  struct Task {
    // Changes the state and adds effects, before the commit. Returns the reply, which is called after the
    // commit with the status of the commit.
    absl::AnyInvocable<Reply(db::Micros now, Effects& fx)> decide;
    // Called with the reason instead of `decide`, if the database cannot be read, or on the posting thread if
    // the coordinator is stopping or too many tasks wait. Empty for events, such as responses of the scheduler,
    // which are few.
    absl::AnyInvocable<void(const absl::Status&)> refuse;
    size_t weight = 1;  // number of points that the task adds to the commit
    size_t runs = 0;    // number of runs of the study that the task contains
  };
  // The times below are times of the steady clock, unless their comments name another clock.
  struct Held {
    absl::Duration until;
    int64_t allocation_id;
    int node_index;
    Done<v1::SynchronizeResponse> done;
  };
  struct OpenWatch {
    int64_t study_id;
    int64_t sent_revision = 0;
    absl::Duration not_before;
    Watcher watcher;
  };

  static absl::Status Stopping();
  static absl::Status TooManyTasks();
  static absl::Status TooManyRuns();
  static absl::Status AllocationOver();
  absl::Status Commit(const db::WriteBatch& batch);
  // Reports a call of the scheduler to the observer. `began` is a time of the steady clock.
  void Observe(SchedulerCall call, absl::Duration began, const absl::Status& status);
  void Post(Task task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Posts a task for an event that needs no response. A stopping coordinator drops the task.
  void PostEvent(absl::AnyInvocable<void(db::Micros now, Effects& fx)> decide, size_t weight = 1);
  // Posts a task, and passes its result to `done` after the commit. If the commit failed, passes the error of
  // the commit. T is absl::Status or an absl::StatusOr.
  template <typename T>
  void PostRequest(absl::AnyInvocable<T(db::Micros now, Effects& fx)> decide,
                   absl::AnyInvocable<void(T)> done, size_t weight = 1, size_t runs = 0);

  absl::Status Load();
  void RunCore();
  // Executes one round: takes tasks, decides, commits, executes the effects and responds.
  void Decide();
  // Waits for tasks, for the time of the next step or for a request to poll. Returns false if the coordinator
  // is stopping and no task is left.
  bool WaitForTasks() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Task> TakeTasks() ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerAllAsStopping();
  // Moves the timeouts by the time in which this process handled no requests, and by jumps of the wall clock.
  void ObserveClocks();
  // Returns the part of the time since the last round in which the service handled no calls.
  absl::Duration TakeUnserved(absl::Duration now);
  bool ReloadChanged();
  void RefuseAll(std::vector<Task> tasks);
  void Act(Effects& fx);
  void ReadEvents(EventRequest request);
  void Assess(const AssessRequest& request);
  void Poll();
  void RecordSchedulerAnswer(const absl::Status& answer, db::Micros now);
  void Answer(std::list<Held>::iterator held);
  void AnswerHeld(const Effects& fx);
  void NotifyWatchers();
  void ForgetFinalStudies(const std::set<int64_t>& changed);
  void RunScheduler() ABSL_LOCKS_EXCLUDED(scheduler_mutex_);
  void PostToScheduler(absl::AnyInvocable<void()> job) ABSL_LOCKS_EXCLUDED(scheduler_mutex_);

  // Only the core thread changes the options, and only those that Configure sets.
  CoordinatorOptions options_;
  db::Store& store_;
  Scheduler& scheduler_;

  // The following members are used by the core thread only.
  State state_;
  std::unique_ptr<Lifecycle> lifecycle_;
  std::list<Held> held_;  // by deadline
  std::unordered_multimap<int64_t, std::list<Held>::iterator> held_by_allocation_;
  std::list<OpenWatch> watches_;
  // The times of the current round. Decisions use the wall clock, because rows and the scheduler use it.
  // Waits use the steady clock.
  absl::Time now_ = absl::InfinitePast();
  absl::Duration steady_ = -absl::InfiniteDuration();
  absl::Duration round_end_ = -absl::InfiniteDuration();  // end of the last round
  absl::Duration late_ =
      absl::ZeroDuration();  // sum of the delays of rounds by which the timeouts have not been moved yet
  absl::Duration unserved_ = absl::ZeroDuration();            // same for time without calls of the service
  absl::Duration counted_until_ = -absl::InfiniteDuration();  // unserved_ contains the time until here
  absl::Duration next_tick_ = -absl::InfiniteDuration();
  absl::Duration next_poll_ = -absl::InfiniteDuration();
  absl::Duration earliest_poll_ = -absl::InfiniteDuration();  // last poll + min_poll_interval
  bool polling_ = false;
  // Studies to reload, because decisions changed them in memory before a failed commit. late_events_ has the
  // responses of the scheduler that arrived before the reload.
  std::set<int64_t> unread_;
  absl::Duration reload_at_ = -absl::InfiniteDuration();  // when to try again
  absl::Status unreadable_;                               // why the last try failed
  std::vector<Task> late_events_;
  absl::StatusOr<ClusterView> view_ = ClusterView();
  absl::Duration view_at_ = -absl::InfiniteDuration();  // when the scheduler returned view_
  std::vector<Done<ClusterView>> viewers_;  // wait for the query in flight; empty if there is none

  // Time of the last call of NoteServing, in nanoseconds of the steady clock; 0: never.
  std::atomic<int64_t> serving_at_ = 0;

  // The queue of tasks for the core thread.
  SteadyMutex mutex_;
  std::deque<Task> mailbox_ ABSL_GUARDED_BY(mutex_);
  size_t queued_runs_ ABSL_GUARDED_BY(mutex_) = 0;  // sum of Task::runs in mailbox_
  bool poll_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;

  // The queue of the thread that calls the scheduler.
  SteadyMutex scheduler_mutex_;
  std::deque<absl::AnyInvocable<void()>> scheduler_jobs_ ABSL_GUARDED_BY(scheduler_mutex_);
  bool scheduler_stopping_ ABSL_GUARDED_BY(scheduler_mutex_) = false;
  bool scheduler_ended_ ABSL_GUARDED_BY(scheduler_mutex_) = true;  // the thread has ended or was not started

  std::thread core_;
  std::thread scheduler_thread_;
};

}  // namespace scalelab::server
