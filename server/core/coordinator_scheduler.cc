// The coordinator's calls of the scheduler. A separate thread makes them one at a time, as a call may take
// seconds; the answers come back as tasks of the core thread.
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/coordinator.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr absl::Duration kViewAge = absl::Seconds(5);  // a view is reused for this time

}  // namespace

void Coordinator::PollSoon() {
  absl::MutexLock lock(&mutex_);
  poll_wanted_ = true;
  arrived_.Signal();
}

void Coordinator::Act(Effects& fx) {
  for (JobRequest& request : fx.submit) {
    request.secret = options_.secret_for(request.token);
    PostToScheduler([this, request = std::move(request)] {
      auto id = scheduler_.Submit(request);
      if (!id.ok()) spdlog::warn("allocation {}: {}", request.token, id.status().ToString());
      PostEvent([this, token = request.token, id = std::move(id)](db::Micros now, Effects& fx) {
        lifecycle_->JobSubmitted(token, id, now, fx);
      });
    });
  }
  for (std::string& token : fx.cancel) {
    PostToScheduler([this, token = std::move(token)] {
      if (auto s = scheduler_.Cancel(token); !s.ok()) spdlog::warn("allocation {}: {}", token, s.ToString());
      PollSoon();
    });
  }
  bool wanted;
  {
    absl::MutexLock lock(&mutex_);
    poll_wanted_ = poll_wanted_ || fx.poll;
    wanted = poll_wanted_;
    if (!polling_) poll_wanted_ = false;
  }
  if (!polling_ && !state_.allocations.empty() && (wanted || absl::Now() >= next_poll_)) Poll();
}

void Coordinator::Poll() {
  polling_ = true;
  // Polls at half the rate when no job is expected to start or end: workers report everything else.
  next_poll_ = absl::Now() + options_.poll_interval * (lifecycle_->JobsChange() ? 1 : 2);
  PostToScheduler([this, asked = absl::ToUnixMicros(absl::Now()), tokens = lifecycle_->JobsToPoll()] {
    auto jobs = scheduler_.Poll(tokens);
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
  health.next_ask = state_.allocations.empty() ? 0 : absl::ToUnixMicros(next_poll_);
}

void Coordinator::View(Done<ClusterView> done) {
  auto shared = std::make_shared<Done<ClusterView>>(std::move(done));
  Task task;
  task.decide = [this, shared](db::Micros, Effects&) -> Reply {
    return [this, shared](absl::Status) {
      if (absl::Now() - view_at_ < kViewAge) return (*shared)(view_);
      // While there are allocations, polls go on and notice when the scheduler is back: no viewer
      // has to wait.
      if (!state_.scheduler.error.empty() && !state_.allocations.empty()) {
        return (*shared)(absl::UnavailableError(state_.scheduler.error));
      }
      viewers_.push_back(std::move(*shared));
      if (viewers_.size() > 1) return;  // a query is in flight
      PostToScheduler([this] {
        Task answer;
        answer.decide = [this, view = scheduler_.View()](db::Micros now, Effects&) mutable -> Reply {
          RecordSchedulerAnswer(view.status(), now);
          view_ = std::move(view);
          view_at_ = absl::FromUnixMicros(now);
          return [this](absl::Status) {
            for (auto& viewer : std::exchange(viewers_, {})) viewer(view_);
          };
        };
        Post(std::move(answer));  // when it is refused, the core thread has answered the viewers
      });
    };
  };
  task.refuse = [shared] { (*shared)(Stopping()); };
  Post(std::move(task));
}

void Coordinator::PostToScheduler(absl::AnyInvocable<void()> job) {
  absl::MutexLock lock(&scheduler_mutex_);
  scheduler_jobs_.push_back(std::move(job));
  scheduler_arrived_.Signal();
}

void Coordinator::RunScheduler() {
  while (true) {
    absl::AnyInvocable<void()> job;
    {
      absl::MutexLock lock(&scheduler_mutex_);
      while (scheduler_jobs_.empty() && !scheduler_stopping_) scheduler_arrived_.Wait(&scheduler_mutex_);
      if (scheduler_stopping_) return;  // calls that were not made are made after the restart
      job = std::move(scheduler_jobs_.front());
      scheduler_jobs_.pop_front();
    }
    job();
  }
}

}  // namespace scalelab::server
