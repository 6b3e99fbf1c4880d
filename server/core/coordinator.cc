#include "server/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planted/bug.h"
#include "proto/status.h"
#include "server/core/reload.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

// Largest number of points in one commit. Inserting them takes about 20 ms, so a request waits no longer than
// that for the points of other requests.
constexpr size_t kPointsPerCommit = 20'000;
// Maximum number of tasks that wait for the core thread. The limits of connections and streams do not bound them while the
// core thread is blocked, because a call that its client cancels leaves its task here.
constexpr size_t kMaxTasks = 10'000;
// Maximum number of runs of studies that wait for the core thread: three studies of the largest size. One of them may take
// more than 50 MB.
constexpr size_t kMaxQueuedRuns = 300'000;
constexpr absl::Duration kTick = absl::Seconds(1);
constexpr absl::Duration kWatchPeriod = absl::Milliseconds(200);

// Returns the status code for clients if the database fails with `status`. A client must not retry while an
// operator has to free space, or to restore a database that was deleted, replaced or damaged. Other errors
// may be temporary, and clients retry.
absl::StatusCode CodeForClients(const absl::Status& status) {
  const bool needs_repair =
      absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status) || absl::IsDataLoss(status);
  return needs_repair ? status.code() : absl::StatusCode::kUnavailable;
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, db::Store& store, Scheduler& scheduler)
    : options_(std::move(options)), store_(store), scheduler_(scheduler) {}

Coordinator::~Coordinator() { Stop(); }

absl::Status Coordinator::Load() {
  now_ = options_.clock->Wall();
  steady_ = options_.clock->Steady();
  next_tick_ = next_poll_ = round_end_ = steady_;
  absl::StatusOr<State> state = LoadState(store_, absl::ToUnixMicros(now_));
  if (!state.ok()) return state.status();
  state_ = *std::move(state);
  LifecycleOptions options;
  options.runs_dir = options_.runs_dir;
  options.runs_by_owner = options_.runs_by_owner;
  options.worker_timeout = absl::ToInt64Microseconds(options_.worker_timeout);
  options.policy = options_.policy;
  options.read_events = options_.events != nullptr;
  options.assess = options_.assess != nullptr;
  options.noise_guard = options_.noise_guard;
  options.avoid_nodes = scheduler_.name() != "local";
  options.new_token = options_.new_token;
  options.environment_of = options_.environment_of;
  lifecycle_ = std::make_unique<Lifecycle>(std::move(options), state_);
  lifecycle_->UpdateQueue(absl::ToUnixMicros(now_));
  spdlog::info("loaded {} live studies, {} live attempts, {} allocations", state_.studies.size(),
               state_.attempts.size(), state_.allocations.size());
  {
    SteadyMutexLock lock(&mutex_);
    started_ = true;
    poll_wanted_ = true;
  }
  PostEvent([](db::Micros, Effects&) {});  // starts the first round, which plans the loaded studies
  return absl::OkStatus();
}

absl::Status Coordinator::StartWithoutThreads() { return Load(); }

absl::Status Coordinator::Start() {
  if (auto s = Load(); !s.ok()) return s;
  {
    SteadyMutexLock lock(&scheduler_mutex_);
    scheduler_ended_ = false;
  }
  scheduler_thread_ = std::thread([this] { RunScheduler(); });
  core_ = std::thread([this] { RunCore(); });
  return absl::OkStatus();
}

bool Coordinator::Stop(absl::Duration grace) {
  bool first = false;
  {
    SteadyMutexLock lock(&mutex_);
    first = started_ && !stopping_;
    stopping_ = stopping_ || first;
    mutex_.SignalAll();
  }
  if (!first) {
    SteadyMutexLock lock(&scheduler_mutex_);
    return scheduler_ended_;
  }
  if (core_.joinable()) {
    core_.join();
  } else {
    AnswerAllAsStopping();
  }
  bool ended = false;
  {
    SteadyMutexLock lock(&scheduler_mutex_);
    scheduler_stopping_ = true;
    scheduler_mutex_.SignalAll();
    const auto over = [this] {
      scheduler_mutex_.AssertHeld();
      return scheduler_ended_;
    };
    ended = scheduler_mutex_.AwaitWithTimeout(over, grace);
  }
  if (scheduler_thread_.joinable()) {
    if (ended)
      scheduler_thread_.join();
    else
      scheduler_thread_.detach();
  }
  return ended;
}

absl::Status Coordinator::Stopping() {
  return MakeError(absl::StatusCode::kUnavailable, "STOPPING",
                   "scalelabd is stopping; try again when it is back");
}

absl::Status Coordinator::TooManyTasks() {
  return MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_CALLS",
                   absl::StrCat("scalelabd has ", kMaxTasks,
                                " requests in its queue, the maximum; try again in 5 seconds"));
}

absl::Status Coordinator::TooManyRuns() {
  return MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_CALLS",
                   absl::StrCat("scalelabd has studies with ", kMaxQueuedRuns,
                                " runs in its queue, the maximum; try again in 5 seconds"));
}

absl::Status Coordinator::AllocationOver() {
  return absl::UnauthenticatedError("the allocation is over; the worker should exit");
}

// --- Called from other threads

void Coordinator::Post(Task task) {
  absl::Status refused;
  {
    SteadyMutexLock lock(&mutex_);
    if (stopping_) {
      refused = Stopping();
    } else if (task.refuse && mailbox_.size() >= kMaxTasks) {
      refused = TooManyTasks();
    } else if (task.runs > 0 && queued_runs_ + task.runs > kMaxQueuedRuns) {
      refused = TooManyRuns();
    } else {
      queued_runs_ += task.runs;
      mailbox_.push_back(std::move(task));
      mutex_.Signal();
      return;
    }
  }
  if (task.refuse) task.refuse(refused);
}

void Coordinator::PostEvent(absl::AnyInvocable<void(db::Micros, Effects&)> decide, size_t weight) {
  Task task;
  task.weight = weight;
  task.decide = [decide = std::move(decide)](db::Micros now, Effects& fx) mutable -> Reply {
    decide(now, fx);
    return [](absl::Status) {};
  };
  Post(std::move(task));
}

// --- The core thread

absl::Duration Coordinator::NextStep() const {
  if (!unread_.empty()) return reload_at_;
  absl::Duration next = absl::InfiniteDuration();
  if (!state_.allocations.empty() || !state_.recovering.empty() || state_.waiting.size() > 0 ||
      !state_.reassess.empty())
    next = next_tick_;
  if (!state_.allocations.empty() && !polling_) next = std::min(next, next_poll_);
  if (!held_.empty()) next = std::min(next, held_.front().until);
  for (const OpenWatch& watch : watches_) {
    const LiveStudy* study = state_.study(watch.study_id);
    if (study == nullptr || study->revision != watch.sent_revision) next = std::min(next, watch.not_before);
  }
  return next;
}

bool Coordinator::WaitForTasks() {
  const absl::Duration next = NextStep();
  SteadyMutexLock lock(&mutex_);
  while (mailbox_.empty() && !stopping_) {
    const absl::Duration due =
        poll_wanted_ && !polling_ && !state_.allocations.empty() ? std::min(next, earliest_poll_) : next;
    const absl::Duration left = due - options_.clock->Steady();
    if (left <= absl::ZeroDuration()) return true;
    mutex_.WaitFor(left);
  }
  return !mailbox_.empty();
}

std::vector<Coordinator::Task> Coordinator::TakeTasks() {
  std::vector<Task> tasks;
  size_t weight = 0;
  SteadyMutexLock lock(&mutex_);
  while (!mailbox_.empty() && weight < kPointsPerCommit) {
    weight += mailbox_.front().weight;
    queued_runs_ -= mailbox_.front().runs;
    tasks.push_back(std::move(mailbox_.front()));
    mailbox_.pop_front();
  }
  return tasks;
}

void Coordinator::RunCore() {
  while (WaitForTasks()) Step();
  AnswerAllAsStopping();
}

void Coordinator::AnswerAllAsStopping() {
  for (Held& held : held_) held.done(Stopping());
  held_.clear();
  held_by_allocation_.clear();
  watches_.clear();
  for (auto& viewer : std::exchange(viewers_, {})) viewer(Stopping());
}

void Coordinator::Step() {
  ObserveClocks();
  Decide();
  round_end_ = options_.clock->Steady();
}

void Coordinator::Decide() {
  std::vector<Task> tasks = TakeTasks();
  if (!ReloadChanged()) return RefuseAll(std::move(tasks));
  tasks.insert(tasks.begin(), std::make_move_iterator(late_events_.begin()),
               std::make_move_iterator(late_events_.end()));
  late_events_.clear();
  const db::Micros micros = absl::ToUnixMicros(now_);
  Effects fx;
  std::vector<Reply> replies;
  replies.reserve(tasks.size());
  for (Task& task : tasks) replies.push_back(task.decide(micros, fx));
  if (steady_ >= next_tick_) {
    lifecycle_->Tick(micros, fx);
    next_tick_ = steady_ + kTick;
  } else {
    lifecycle_->Plan(micros, fx);
  }
  if (Planted(Bug::kAnswerBeforeCommit)) {
    for (Reply& reply : std::exchange(replies, {})) reply(absl::OkStatus());
  }
  absl::Status durable = fx.batch.empty() ? absl::OkStatus() : Commit(fx.batch);
  if (!durable.ok()) {
    spdlog::error("commit of {} requests failed, none of them changed anything: {}", tasks.size(),
                  durable.ToString());
    durable = MakeError(
        CodeForClients(durable), "NOT_DURABLE",
        absl::StrCat("the database could not store the change, nothing was changed: ", durable.message()));
    if (!Planted(Bug::kFailedCommitNotReloaded)) unread_.merge(StudiesOf(fx, state_));
    for (const JobRequest& request : fx.submit) {
      const auto it = state_.allocation_by_token.find(request.token);
      if (it != state_.allocation_by_token.end()) state_.allocation(it->second)->submitting = false;
    }
    for (const EventRequest& request : fx.read) {
      const auto it = state_.attempt_by_token.find(request.token);
      if (it != state_.attempt_by_token.end()) state_.attempt(it->second)->recovery->number = 0;
    }
    state_.commit_failed = micros;
    fx = Effects();
    if (!ReloadChanged()) {
      for (Reply& reply : replies) reply(durable);
      return;
    }
  } else if (!fx.batch.empty()) {
    state_.commit_failed = 0;
  }
  for (Reply& reply : replies) reply(durable);
  if (!durable.ok()) {
    while (!held_.empty()) Answer(held_.begin());  // the reload has changed the generations
  }
  Act(fx);
  AnswerHeld(fx);
  NotifyWatchers();
  ForgetFinalStudies(fx.changed_studies);
}

absl::Status Coordinator::Commit(const db::WriteBatch& batch) {
  const absl::Duration began = options_.clock->Steady();
  absl::Status status = store_.Commit(batch);
  if (options_.observer != nullptr)
    options_.observer->Committed(batch, options_.clock->Steady() - began, status);
  return status;
}

// Reloads the studies that decisions have changed before a failed commit. Returns false while the database
// cannot be read. Until then, the coordinator makes no further decision.
bool Coordinator::ReloadChanged() {
  if (unread_.empty()) return true;
  if (steady_ < reload_at_) return false;
  const absl::Status status = ReloadStudies(store_, unread_, absl::ToUnixMicros(now_), state_);
  if (!status.ok()) {
    spdlog::critical("the database cannot be read, every request is refused: {}", status.ToString());
    unreadable_ = status;
    reload_at_ = steady_ + kTick;
    return false;
  }
  unread_.clear();
  lifecycle_->UpdateQueue(absl::ToUnixMicros(now_));
  return true;
}

// Refuses requests while the state in memory differs from the database. Keeps responses of the
// scheduler for later.
void Coordinator::RefuseAll(std::vector<Task> tasks) {
  const absl::Status status =
      MakeError(CodeForClients(unreadable_), "DATABASE_UNREADABLE",
                absl::StrCat("the database cannot be read, nothing was changed: ", unreadable_.message()));
  for (Task& task : tasks) {
    if (task.refuse) {
      task.refuse(status);
    } else {
      late_events_.push_back(std::move(task));
    }
  }
}

void Coordinator::Answer(std::list<Held>::iterator held) {
  const LiveAllocation* allocation = state_.allocation(held->allocation_id);
  const auto [first, last] = held_by_allocation_.equal_range(held->allocation_id);
  held_by_allocation_.erase(
      std::find_if(first, last, [&](const auto& entry) { return entry.second == held; }));
  Held gone = std::move(*held);
  held_.erase(held);
  if (allocation == nullptr) {
    gone.done(AllocationOver());
  } else {
    gone.done(lifecycle_->Desired(*allocation, gone.node_index));
  }
}

void Coordinator::AnswerHeld(const Effects& fx) {
  while (!held_.empty() && held_.front().until <= steady_) Answer(held_.begin());
  for (const int64_t id : fx.woken) {
    for (auto it = held_by_allocation_.find(id); it != held_by_allocation_.end();
         it = held_by_allocation_.find(id)) {
      Answer(it->second);
    }
  }
}

void Coordinator::NotifyWatchers() {
  for (auto it = watches_.begin(); it != watches_.end();) {
    const LiveStudy* study = state_.study(it->study_id);
    bool keep = study != nullptr;
    if (keep && study->revision != it->sent_revision &&
        (steady_ >= it->not_before || IsFinal(study->row.state))) {
      it->sent_revision = study->revision;
      it->not_before = steady_ + kWatchPeriod;
      const bool final = IsFinal(study->row.state);
      keep = it->watcher(*study, state_, final) && !final;
    }
    it = keep ? std::next(it) : watches_.erase(it);
  }
}

void Coordinator::ForgetFinalStudies(const std::set<int64_t>& changed) {
  for (const int64_t id : changed) {
    const LiveStudy* study = state_.study(id);
    if (study != nullptr && IsFinal(study->row.state)) state_.studies.erase(id);
  }
}

}  // namespace scalelab::server
