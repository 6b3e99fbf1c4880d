#include "server/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/core/reload.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

// Points in one commit at most: about 20 ms of inserts, so that no answer waits longer for somebody else's
// points.
constexpr size_t kPointsPerCommit = 20'000;
constexpr absl::Duration kTick = absl::Seconds(1);
constexpr absl::Duration kWatchPeriod = absl::Milliseconds(200);
// A round that comes so much later than planned means that this process stood still.
constexpr absl::Duration kStoodStill = absl::Seconds(5);

absl::Status Stopping() {
  return MakeError(absl::StatusCode::kUnavailable, "STOPPING",
                   "scalelabd is stopping; try again when it is back");
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, db::Store& store, Scheduler& scheduler)
    : options_(std::move(options)), store_(store), scheduler_(scheduler) {}

Coordinator::~Coordinator() { Stop(); }

absl::Status Coordinator::Start() {
  absl::StatusOr<State> state = LoadState(store_, absl::ToUnixMicros(absl::Now()));
  if (!state.ok()) return state.status();
  state_ = *std::move(state);
  LifecycleOptions options;
  options.runs_dir = options_.runs_dir;
  options.worker_timeout = absl::ToInt64Microseconds(options_.worker_timeout);
  options.max_pending_allocations = options_.max_pending_allocations;
  options.new_token = options_.new_token;
  options.environment_of = options_.environment_of;
  lifecycle_ = std::make_unique<Lifecycle>(std::move(options), state_);
  spdlog::info("loaded {} live studies, {} live attempts, {} allocations", state_.studies.size(),
               state_.attempts.size(), state_.allocations.size());
  started_ = true;
  scheduler_thread_ = std::thread([this] { RunScheduler(); });
  core_ = std::thread([this] { RunCore(); });
  return absl::OkStatus();
}

void Coordinator::Stop() {
  {
    std::lock_guard lock(mutex_);
    if (!started_ || stopping_) return;
    stopping_ = true;
  }
  arrived_.notify_all();
  core_.join();
  {
    std::lock_guard lock(scheduler_mutex_);
    scheduler_stopping_ = true;
  }
  scheduler_arrived_.notify_all();
  scheduler_thread_.join();
}

// --- from other threads
// ------------------------------------------------------------------------------------------

void Coordinator::Post(Decide decide, size_t weight) {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) {
      mailbox_.push_back({std::move(decide), weight});
      arrived_.notify_one();
      return;
    }
  }
  Effects none;
  decide(0, none)(Stopping());
}

void Coordinator::Submit(NewStudy study, Done<int64_t> done) {
  // Decide may be called by a stopping coordinator just to be told so: it must not have moved anything then.
  Post(
      [this, study = std::move(study), done = std::move(done)](db::Micros now, Effects& fx) mutable -> Reply {
        if (now == 0) return [done = std::move(done)](absl::Status s) mutable { done(s); };
        return [id = lifecycle_->Submit(std::move(study), now, fx),
                done = std::move(done)](absl::Status s) mutable { s.ok() ? done(std::move(id)) : done(s); };
      });
}

void Coordinator::CancelStudy(int64_t study_id, DoneStatus done) {
  Post([this, study_id, done = std::move(done)](db::Micros now, Effects& fx) mutable -> Reply {
    absl::Status result = now == 0 ? absl::OkStatus() : lifecycle_->CancelStudy(study_id, now, fx);
    return [result, done = std::move(done)](absl::Status s) mutable { done(s.ok() ? result : s); };
  });
}

void Coordinator::CancelRun(int64_t study_id, int64_t run_id, DoneStatus done) {
  Post([this, study_id, run_id, done = std::move(done)](db::Micros now, Effects& fx) mutable -> Reply {
    absl::Status result = now == 0 ? absl::OkStatus() : lifecycle_->CancelRun(study_id, run_id, now, fx);
    return [result, done = std::move(done)](absl::Status s) mutable { done(s.ok() ? result : s); };
  });
}

void Coordinator::DeleteStudy(int64_t study_id, DoneStatus done) {
  Post([this, study_id, done = std::move(done)](db::Micros now, Effects& fx) mutable -> Reply {
    absl::Status result;
    const StudyState* live = now == 0 ? nullptr : state_.study(study_id);
    if (live != nullptr && !IsFinal(live->row.state)) {
      result = MakeError(absl::StatusCode::kFailedPrecondition, "STUDY_NOT_FINAL",
                         absl::StrCat("studies/", study_id, " is not over; cancel it first"));
    } else if (now != 0) {
      fx.batch.deleted_studies.push_back(study_id);
    }
    return [result, done = std::move(done)](absl::Status s) mutable { done(s.ok() ? result : s); };
  });
}

void Coordinator::Synchronize(std::string allocation_token, v1::SynchronizeRequest request,
                              Done<v1::SynchronizeResponse> done) {
  Post([this, token = std::move(allocation_token), request = std::move(request), done = std::move(done)](
           db::Micros now, Effects& fx) mutable -> Reply {
    absl::Status seen = now == 0 ? absl::OkStatus() : lifecycle_->Observe(token, request, now, fx);
    return [this, seen, token = std::move(token), node = request.node_index(), known = request.generation(),
            done = std::move(done)](absl::Status s) mutable {
      if (!s.ok() || !seen.ok()) return done(s.ok() ? seen : s);
      const auto it = state_.allocation_by_token.find(token);
      if (it == state_.allocation_by_token.end()) {
        return done(absl::UnauthenticatedError("the allocation is over; the worker should exit"));
      }
      const AllocationState& allocation = *state_.allocation(it->second);
      // A worker has one call open: an older one was given up by it.
      const auto [first, last] = held_by_allocation_.equal_range(it->second);
      const auto older =
          std::find_if(first, last, [&](const auto& h) { return h.second->node_index == node; });
      if (older != last) Answer(older->second);
      if (known != allocation.generation) return done(lifecycle_->Desired(allocation, node));
      held_.push_back({absl::Now() + options_.long_poll, it->second, node, std::move(done)});
      held_by_allocation_.emplace(it->second, std::prev(held_.end()));
    };
  });
}

void Coordinator::Report(std::vector<ParsedBatch> batches,
                         Done<std::vector<v1::ReportEventsResponse::Stream>> done) {
  size_t points = 1;
  for (const ParsedBatch& batch : batches) {
    for (const db::PointColumn& column : batch.append.columns) points += column.value.size();
  }
  Post(
      [this, batches = std::move(batches), done = std::move(done)](db::Micros now,
                                                                   Effects& fx) mutable -> Reply {
        if (now == 0) return [done = std::move(done)](absl::Status s) mutable { done(s); };
        return [streams = lifecycle_->Ingest(std::move(batches), fx), done = std::move(done)](
                   absl::Status s) mutable { s.ok() ? done(std::move(streams)) : done(s); };
      },
      points);
}

void Coordinator::Watch(int64_t study_id, Watcher watcher, DoneStatus not_live) {
  Post([this, study_id, watcher = std::move(watcher), not_live = std::move(not_live)](
           db::Micros, Effects&) mutable -> Reply {
    return [this, study_id, watcher = std::move(watcher),
            not_live = std::move(not_live)](absl::Status s) mutable {
      if (!s.ok()) return not_live(s);
      if (state_.study(study_id) == nullptr) return not_live(absl::NotFoundError("the study is not live"));
      watches_.push_back({study_id, 0, absl::InfinitePast(), std::move(watcher)});
    };
  });
}

void Coordinator::Read(absl::AnyInvocable<void(const State*)> read) {
  Post([this, read = std::move(read)](db::Micros now, Effects&) mutable -> Reply {
    return
        [state = now == 0 ? nullptr : &state_, read = std::move(read)](absl::Status) mutable { read(state); };
  });
}

// --- the core thread
// ---------------------------------------------------------------------------------------------

absl::Time Coordinator::NextWake() const {
  absl::Time next = absl::InfiniteFuture();
  if (!state_.allocations.empty() || state_.waiting.size() > 0) next = next_tick_;
  if (!state_.allocations.empty() && !polling_) next = std::min(next, next_poll_);
  if (!held_.empty()) next = std::min(next, held_.front().until);
  for (const Watch_& watch : watches_) {
    const StudyState* study = state_.study(watch.study_id);
    if (study == nullptr || study->revision != watch.sent_revision) next = std::min(next, watch.not_before);
  }
  return next;
}

void Coordinator::RunCore() {
  Post([](db::Micros, Effects&) -> Reply {
    return [](absl::Status) {};
  });  // first round: plan what was loaded
  poll_wanted_ = true;
  while (true) {
    std::vector<Task> tasks;
    const absl::Time wake = NextWake();
    {
      std::unique_lock lock(mutex_);
      const auto ready = [&] { return !mailbox_.empty() || stopping_ || (poll_wanted_ && !polling_); };
      if (wake == absl::InfiniteFuture()) {
        arrived_.wait(lock, ready);
      } else {
        arrived_.wait_until(lock, absl::ToChronoTime(wake), ready);
      }
      if (stopping_ && mailbox_.empty()) break;
      size_t weight = 0;
      while (!mailbox_.empty() && weight < kPointsPerCommit) {
        weight += mailbox_.front().weight;
        tasks.push_back(std::move(mailbox_.front()));
        mailbox_.pop_front();
      }
    }
    // Long after the planned wake-up: this process was stopped, or its machine slept.
    const absl::Duration late = absl::Now() - wake;
    if (wake != absl::InfiniteFuture() && late > kStoodStill && last_round_ != absl::InfinitePast()) {
      lifecycle_->Forgive(absl::ToInt64Microseconds(late));
    }
    Round(std::move(tasks));
  }
  for (Held& held : held_) held.done(Stopping());
  held_.clear();
  held_by_allocation_.clear();
  watches_.clear();
  for (auto& viewer : std::exchange(viewers_, {})) viewer(Stopping());
}

void Coordinator::Round(std::vector<Task> tasks) {
  const absl::Time now = absl::Now();
  const db::Micros micros = absl::ToUnixMicros(now);
  last_round_ = now;
  Effects fx;
  std::vector<Reply> replies;
  replies.reserve(tasks.size());
  for (Task& task : tasks) replies.push_back(task.decide(micros, fx));
  if (now >= next_tick_) {
    lifecycle_->Tick(micros, fx);
    next_tick_ = now + kTick;
  } else {
    lifecycle_->Plan(micros, fx);
  }
  absl::Status durable = fx.batch.empty() ? absl::OkStatus() : store_.Commit(fx.batch);
  if (!durable.ok()) {
    spdlog::error("nothing of {} requests could be made durable: {}", tasks.size(), durable.ToString());
    // A full disk needs a person; anything else may pass, and clients try again by themselves.
    const bool full = absl::IsResourceExhausted(durable);
    durable =
        MakeError(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable, "NOT_DURABLE",
                  absl::StrCat("the database did not take it, nothing was changed: ", durable.message()));
    Reload();
    fx = Effects();
  }
  for (Reply& reply : replies) reply(durable);
  if (!durable.ok()) {
    while (!held_.empty()) Answer(held_.begin());  // generations are new
  }
  Act(fx);
  AnswerHeld(fx, now);
  NotifyWatchers(now);
  ForgetFinalStudies(fx.changed_studies);
}

// The state ran ahead of the database: what is in the database is the truth.
void Coordinator::Reload() {
  absl::StatusOr<State> state = LoadState(store_, absl::ToUnixMicros(absl::Now()));
  if (!state.ok()) {
    spdlog::critical("the database cannot be read any more: {}", state.status().ToString());
    std::abort();  // going on would mean to act on a state that is nowhere
  }
  // What only connections can tell is kept, so that nothing waits for a worker to speak again.
  for (const auto& [id, allocation] : state_.allocations) {
    if (AllocationState* fresh = state->allocation(id)) {
      fresh->workers = allocation->workers;
      fresh->listening_since = allocation->listening_since;
      fresh->leaving_since = allocation->leaving_since;
      fresh->ends_at = allocation->ends_at;
      fresh->served = allocation->served;
    }
  }
  state->scheduler = state_.scheduler;
  state->requests.clear();
  state_ = *std::move(state);
  next_tick_ = absl::Now() + kTick;
}

void Coordinator::Answer(std::list<Held>::iterator held) {
  const AllocationState* allocation = state_.allocation(held->allocation_id);
  const auto [first, last] = held_by_allocation_.equal_range(held->allocation_id);
  held_by_allocation_.erase(
      std::find_if(first, last, [&](const auto& entry) { return entry.second == held; }));
  Held gone = std::move(*held);
  held_.erase(held);
  if (allocation == nullptr) {
    gone.done(absl::UnauthenticatedError("the allocation is over; the worker should exit"));
  } else {
    gone.done(lifecycle_->Desired(*allocation, gone.node_index));
  }
}

void Coordinator::AnswerHeld(const Effects& fx, absl::Time now) {
  while (!held_.empty() && held_.front().until <= now) Answer(held_.begin());
  for (const int64_t id : fx.woken) {
    for (auto it = held_by_allocation_.find(id); it != held_by_allocation_.end();
         it = held_by_allocation_.find(id)) {
      Answer(it->second);
    }
  }
}

void Coordinator::NotifyWatchers(absl::Time now) {
  for (auto it = watches_.begin(); it != watches_.end();) {
    const StudyState* study = state_.study(it->study_id);
    bool keep = study != nullptr;
    if (keep && study->revision != it->sent_revision &&
        (now >= it->not_before || IsFinal(study->row.state))) {
      it->sent_revision = study->revision;
      it->not_before = now + kWatchPeriod;
      const bool final = IsFinal(study->row.state);
      keep = it->watcher(*study, state_, final) && !final;
    }
    it = keep ? std::next(it) : watches_.erase(it);
  }
}

void Coordinator::ForgetFinalStudies(const std::set<int64_t>& changed) {
  for (const int64_t id : changed) {
    const StudyState* study = state_.study(id);
    if (study != nullptr && IsFinal(study->row.state)) state_.studies.erase(id);
  }
}

}  // namespace scalelab::server
