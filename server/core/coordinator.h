// The core thread: takes everything that happened, decides (Lifecycle), makes it durable in one commit, then
// acts and answers. So nothing is acknowledged before it is durable, and throughput does not depend on how
// long a sync takes.
#pragma once

#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "db/store.h"
#include "server/core/lifecycle.h"
#include "server/scheduler/scheduler.h"
#include "server/core/state.h"

namespace scalelab::server {

struct CoordinatorOptions {
  std::string runs_dir;
  absl::Duration worker_timeout = absl::Seconds(30);
  absl::Duration long_poll = absl::Seconds(10);  // longest time a Synchronize is held
  absl::Duration poll_interval =
      absl::Seconds(15);  // between questions to the scheduler when nothing calls for one
  int max_pending_allocations = 4;
  std::function<std::string(const std::string& allocation_token)> secret_for;
  std::function<std::string()> new_token;
  // As LifecycleOptions has it.
  std::function<std::optional<v1::FrameworkEnvironment>(const std::string& engine)> environment_of;
};

// All methods may be called from any thread. Callbacks run on the core thread after the commit: they must not
// block. RESOURCE_EXHAUSTED (a full disk) and UNAVAILABLE (any other reason, or the coordinator is stopping):
// it could not be made durable and nothing happened.
class Coordinator {
 public:
  template <typename T>
  using Done = absl::AnyInvocable<void(absl::StatusOr<T>)>;
  using DoneStatus = absl::AnyInvocable<void(absl::Status)>;
  // Hears of a study; `final` is the last call. Returns false when it wants no more.
  using Watcher = absl::AnyInvocable<bool(const StudyState& study, const State& state, bool final)>;

  // `store` and `scheduler` must outlive it.
  Coordinator(CoordinatorOptions options, db::Store& store, Scheduler& scheduler);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Loads what the database has and starts the threads.
  absl::Status Start();
  // Answers what is held, finishes what was accepted, ends the threads. Workers go on and find the next
  // coordinator.
  void Stop();

  void Submit(NewStudy study, Done<int64_t> done);
  void CancelStudy(int64_t study_id, DoneStatus done);
  void CancelRun(int64_t study_id, int64_t run_id, DoneStatus done);
  void DeleteStudy(int64_t study_id, DoneStatus done);
  void Synchronize(std::string allocation_token, v1::SynchronizeRequest request,
                   Done<v1::SynchronizeResponse> done);
  void Report(std::vector<ParsedBatch> batches, Done<std::vector<v1::ReportEventsResponse::Stream>> done);
  // NOT_FOUND when the study is not live; then the database tells all there is.
  void Watch(int64_t study_id, Watcher watcher, DoneStatus not_live);
  // Lets `read` look at the state on the core thread; null when the coordinator is stopping.
  void Read(absl::AnyInvocable<void(const State*)> read);
  // What the scheduler has, a few seconds old at most; it is asked when need be, which may take as long as it
  // takes. While it is known not to answer, that is the answer, at once: UNAVAILABLE, or what it failed with.
  void View(Done<ClusterView> done);
  // The scheduler has news.
  void PollSoon();

 private:
  using Reply = absl::AnyInvocable<void(absl::Status)>;
  using Decide = absl::AnyInvocable<Reply(db::Micros now, Effects& fx)>;
  struct Task {
    Decide decide;
    size_t weight = 1;  // points it brings
  };
  struct Held {
    absl::Time until;
    int64_t allocation_id;
    int node_index;
    Done<v1::SynchronizeResponse> done;
  };
  struct Watch_ {
    int64_t study_id;
    int64_t sent_revision = 0;
    absl::Time not_before;
    Watcher watcher;
  };

  void Post(Decide decide, size_t weight = 1);
  void RunCore();
  absl::Time NextWake() const;
  void Round(std::vector<Task> tasks);
  void Reload();
  void Act(Effects& fx);
  void Poll();
  void Heard(const absl::Status& answer, db::Micros now);
  void Answer(std::list<Held>::iterator held);
  void AnswerHeld(const Effects& fx, absl::Time now);
  void NotifyWatchers(absl::Time now);
  void ForgetFinalStudies(const std::set<int64_t>& changed);
  void RunScheduler();
  void PostToScheduler(absl::AnyInvocable<void()> job);

  const CoordinatorOptions options_;
  db::Store& store_;
  Scheduler& scheduler_;

  // Core thread only.
  State state_;
  std::unique_ptr<Lifecycle> lifecycle_;
  std::list<Held> held_;  // by deadline
  std::unordered_multimap<int64_t, std::list<Held>::iterator> held_by_allocation_;
  std::list<Watch_> watches_;
  absl::Time last_round_ = absl::InfinitePast();
  absl::Time next_tick_ = absl::InfinitePast();
  absl::Time next_poll_ = absl::InfinitePast();
  bool polling_ = false;
  absl::StatusOr<ClusterView> view_ = ClusterView();
  absl::Time view_at_ = absl::InfinitePast();  // when view_ was answered
  std::vector<Done<ClusterView>> viewers_;     // wait for the next answer; not empty while it is asked for

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Task> mailbox_;  // guarded by mutex_
  bool poll_wanted_ = false;  // guarded by mutex_
  bool stopping_ = false;     // guarded by mutex_
  bool started_ = false;      // guarded by mutex_

  std::mutex scheduler_mutex_;
  std::condition_variable scheduler_arrived_;
  std::deque<absl::AnyInvocable<void()>> scheduler_jobs_;  // guarded by scheduler_mutex_
  bool scheduler_stopping_ = false;                        // guarded by scheduler_mutex_

  std::thread core_;
  std::thread scheduler_thread_;
};

}  // namespace scalelab::server
