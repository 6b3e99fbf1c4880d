// The coordinator's calls of the scheduler and of the event reader. A separate thread calls the scheduler,
// one call at a time, because a call may take seconds. The event reader has its own threads. Responses arrive
// as tasks of the core thread.
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/coordinator.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr absl::Duration kViewAge = absl::Seconds(5);  // a view is reused for this time

}  // namespace

void Coordinator::PollSoon() {
  SteadyMutexLock lock(&mutex_);
  poll_wanted_ = true;
  mutex_.Signal();
}

void Coordinator::AgentConnected(const std::string& user) {
  PostEvent([this, user](db::Micros now, Effects& fx) {
    lifecycle_->TryAgain(user, now);
    lifecycle_->Tick(now, fx);
    fx.poll = true;
  });
}

void Coordinator::Observe(SchedulerCall call, absl::Duration began, const absl::Status& status) {
  if (options_.observer != nullptr)
    options_.observer->SchedulerCalled(call, options_.clock->Steady() - began, status);
}

void Coordinator::Act(Effects& fx) {
  for (JobRequest& request : fx.submit) {
    request.secret = options_.secret_for(request.token);
    PostToScheduler([this, request = std::move(request)] {
      const absl::Duration began = options_.clock->Steady();
      auto id = scheduler_.Submit(request);
      Observe(SchedulerCall::kSubmit, began, id.status());
      if (!id.ok()) spdlog::warn("allocation {}: {}", request.token, id.status().ToString());
      PostEvent([this, token = request.token, id = std::move(id)](db::Micros now, Effects& fx) {
        lifecycle_->JobSubmitted(token, id, now, fx);
      });
    });
  }
  if (!fx.cancel.empty()) {
    PostToScheduler([this, tokens = std::move(fx.cancel)] {
      const absl::Duration began = options_.clock->Steady();
      const absl::Status s = scheduler_.Cancel(tokens);
      Observe(SchedulerCall::kCancel, began, s);
      if (!s.ok()) {
        spdlog::warn("cancelling {} jobs ({}, ...): {}; will be tried again", tokens.size(), tokens[0],
                     s.ToString());
      }
      PostEvent([this, tokens, s](db::Micros, Effects&) { lifecycle_->JobsCancelled(tokens, s); });
      PollSoon();
    });
  }
  for (EventRequest& request : fx.read) ReadEvents(std::move(request));
  for (const AssessRequest& request : fx.assess) Assess(request);
  for (const std::string& warning : fx.warnings) spdlog::warn("{}", warning);
  bool poll = steady_ >= next_poll_;
  {
    SteadyMutexLock lock(&mutex_);
    poll_wanted_ = poll_wanted_ || fx.poll;
    poll = (poll || (poll_wanted_ && steady_ >= earliest_poll_)) && !polling_ && !state_.allocations.empty();
    if (poll || state_.allocations.empty()) poll_wanted_ = false;
  }
  if (poll) Poll();
}

void Coordinator::ReadEvents(EventRequest request) {
  const std::string token = request.token;
  const int64_t number = request.number;
  options_.events->Read(std::move(request), [this, token, number](absl::StatusOr<EventPart> part) {
    const size_t weight = 1 + (part.ok() ? PointsOf(part->batches) : 0);
    PostEvent(
        [this, token, number, part = std::move(part)](db::Micros now, Effects& fx) mutable {
          lifecycle_->EventsRead(token, number, std::move(part), now, fx);
        },
        weight);
  });
}

void Coordinator::Assess(const AssessRequest& request) {
  options_.assess(request, [this, request](absl::StatusOr<Assessment> assessment) {
    PostEvent([this, request, assessment = std::move(assessment)](db::Micros now, Effects& fx) {
      lifecycle_->Assessed(request, assessment, now, fx);
    });
  });
}

void Coordinator::Poll() {
  polling_ = true;
  // Poll at half the rate if no job is expected to start or end, because workers report everything else.
  next_poll_ = steady_ + options_.poll_interval * (lifecycle_->JobsChange() ? 1 : 2);
  earliest_poll_ = steady_ + options_.min_poll_interval;
  PostToScheduler([this, asked = absl::ToUnixMicros(now_), tokens = lifecycle_->JobsToPoll()] {
    const absl::Duration began = options_.clock->Steady();
    auto jobs = scheduler_.Poll(tokens);
    Observe(SchedulerCall::kPoll, began, jobs.status());
    if (!jobs.ok()) spdlog::warn("the poll of the scheduler failed: {}", jobs.status().ToString());
    PostEvent([this, asked, jobs = std::move(jobs)](db::Micros now, Effects& fx) {
      polling_ = false;
      RecordSchedulerAnswer(jobs.status(), now);
      if (jobs.ok()) lifecycle_->JobsPolled(*jobs, asked, now, fx);
    });
  });
}

void Coordinator::RecordSchedulerAnswer(const absl::Status& answer, db::Micros now) {
  SchedulerHealth& health = state_.scheduler;
  if (answer.ok()) {
    health = SchedulerHealth();
    return;
  }
  if (health.since == 0) health.since = now;
  health.error = std::string(answer.message());
  health.next_ask = state_.allocations.empty() ? 0 : absl::ToUnixMicros(now_ + (next_poll_ - steady_));
}

void Coordinator::View(Done<ClusterView> done) {
  auto shared = std::make_shared<Done<ClusterView>>(std::move(done));
  Task task;
  task.decide = [this, shared](db::Micros, Effects&) -> Reply {
    return [this, shared](absl::Status) {
      if (steady_ - view_at_ < kViewAge) return (*shared)(view_);
      // Return the known error at once. While there are allocations, polls continue, and they detect when the
      // scheduler is available again.
      if (!state_.scheduler.error.empty() && !state_.allocations.empty()) {
        return (*shared)(absl::UnavailableError(state_.scheduler.error));
      }
      viewers_.push_back(std::move(*shared));
      if (viewers_.size() > 1) return;  // a query is in flight
      PostToScheduler([this] {
        const absl::Duration began = options_.clock->Steady();
        auto view = scheduler_.View();
        Observe(SchedulerCall::kView, began, view.status());
        Task answer;
        answer.decide = [this, view = std::move(view)](db::Micros now, Effects&) mutable -> Reply {
          RecordSchedulerAnswer(view.status(), now);
          view_ = std::move(view);
          view_at_ = steady_;
          return [this](absl::Status) {
            for (auto& viewer : std::exchange(viewers_, {})) viewer(view_);
          };
        };
        Post(std::move(answer));  // if it is refused, the core thread has already called the viewers
      });
    };
  };
  task.refuse = [shared](const absl::Status& status) { (*shared)(status); };
  Post(std::move(task));
}

void Coordinator::PostToScheduler(absl::AnyInvocable<void()> job) {
  SteadyMutexLock lock(&scheduler_mutex_);
  scheduler_jobs_.push_back(std::move(job));
  scheduler_mutex_.SignalAll();
}

bool Coordinator::StepScheduler() {
  absl::AnyInvocable<void()> job;
  {
    SteadyMutexLock lock(&scheduler_mutex_);
    if (scheduler_jobs_.empty()) return false;
    job = std::move(scheduler_jobs_.front());
    scheduler_jobs_.pop_front();
  }
  job();
  return true;
}

void Coordinator::RunScheduler() {
  while (true) {
    {
      SteadyMutexLock lock(&scheduler_mutex_);
      while (scheduler_jobs_.empty() && !scheduler_stopping_)
        scheduler_mutex_.WaitFor(absl::InfiniteDuration());
      if (scheduler_stopping_) {  // the next coordinator makes the remaining calls
        scheduler_ended_ = true;
        scheduler_mutex_.SignalAll();
        return;
      }
    }
    StepScheduler();
  }
}

}  // namespace scalelab::server
