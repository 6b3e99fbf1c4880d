// The coordinator's talk with the scheduler: asked on a thread of its own, since an answer may take seconds,
// one question at a time; answers come back as tasks of the core thread.
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/coordinator.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr absl::Duration kViewAge = absl::Seconds(5);  // people who look often are one question

}  // namespace

void Coordinator::PollSoon() {
  std::lock_guard lock(mutex_);
  poll_wanted_ = true;
  arrived_.notify_one();
}

void Coordinator::Act(Effects& fx) {
  for (JobRequest& request : fx.submit) {
    request.secret = options_.secret_for(request.token);
    PostToScheduler([this, request = std::move(request)] {
      auto id = scheduler_.Submit(request);
      if (!id.ok()) spdlog::warn("allocation {}: {}", request.token, id.status().ToString());
      Post([this, token = request.token, id = std::move(id)](db::Micros now, Effects& fx) -> Reply {
        if (now != 0) lifecycle_->JobSubmitted(token, id, now, fx);
        return [](absl::Status) {};
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
    std::lock_guard lock(mutex_);
    poll_wanted_ = poll_wanted_ || fx.poll;
    wanted = poll_wanted_;
    if (!polling_) poll_wanted_ = false;
  }
  if (!polling_ && !state_.allocations.empty() && (wanted || absl::Now() >= next_poll_)) Poll();
}

void Coordinator::Poll() {
  polling_ = true;
  // Slower when nothing is about to happen: then workers tell what does.
  next_poll_ = absl::Now() + options_.poll_interval * (lifecycle_->JobsChange() ? 1 : 2);
  PostToScheduler([this, asked = absl::ToUnixMicros(absl::Now()), tokens = lifecycle_->JobsToPoll()] {
    auto jobs = scheduler_.Poll(tokens);
    if (!jobs.ok()) spdlog::warn("the scheduler does not answer: {}", jobs.status().ToString());
    Post([this, asked, jobs = std::move(jobs)](db::Micros now, Effects& fx) -> Reply {
      if (now == 0) return [](absl::Status) {};
      polling_ = false;
      Heard(jobs.status(), now);
      if (jobs.ok()) lifecycle_->JobsPolled(*jobs, asked, now, fx);
      return [](absl::Status) {};
    });
  });
}

void Coordinator::Heard(const absl::Status& answer, db::Micros now) {
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
  Post([this, done = std::move(done)](db::Micros now, Effects&) mutable -> Reply {
    if (now == 0) return [done = std::move(done)](absl::Status s) mutable { done(s); };
    return [this, done = std::move(done)](absl::Status) mutable {
      if (absl::Now() - view_at_ < kViewAge) return done(view_);
      // Polls go on while there are allocations and will tell when it is back: nobody waits for that here.
      if (!state_.scheduler.error.empty() && !state_.allocations.empty()) {
        return done(absl::UnavailableError(state_.scheduler.error));
      }
      viewers_.push_back(std::move(done));
      if (viewers_.size() > 1) return;
      PostToScheduler([this] {
        auto view = scheduler_.View();
        Post([this, view = std::move(view)](db::Micros now, Effects&) mutable -> Reply {
          if (now == 0) return [](absl::Status) {};  // the core thread has answered the viewers
          Heard(view.status(), now);
          view_ = std::move(view);
          view_at_ = absl::FromUnixMicros(now);
          return [this](absl::Status) {
            for (auto& viewer : std::exchange(viewers_, {})) viewer(view_);
          };
        });
      });
    };
  });
}

void Coordinator::PostToScheduler(absl::AnyInvocable<void()> job) {
  std::lock_guard lock(scheduler_mutex_);
  scheduler_jobs_.push_back(std::move(job));
  scheduler_arrived_.notify_one();
}

void Coordinator::RunScheduler() {
  while (true) {
    absl::AnyInvocable<void()> job;
    {
      std::unique_lock lock(scheduler_mutex_);
      scheduler_arrived_.wait(lock, [&] { return !scheduler_jobs_.empty() || scheduler_stopping_; });
      if (scheduler_stopping_) return;  // what was not asked is asked again after the restart
      job = std::move(scheduler_jobs_.front());
      scheduler_jobs_.pop_front();
    }
    job();
  }
}

}  // namespace scalelab::server
