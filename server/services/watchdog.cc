#include "server/services/watchdog.h"

#include <malloc.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/time/clock.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(1);
// A failed commit makes the service unhealthy for this time, if there is no later commit.
constexpr absl::Duration kFailureCounts = absl::Minutes(1);
constexpr absl::Duration kTrimPeriod = absl::Seconds(10);
// The C library keeps memory that a large request has freed. Return it to the system if it is more than this.
constexpr size_t kWorthTrimming = size_t{16} << 20;

void TrimMemory() {
  if (mallinfo2().fordblks > kWorthTrimming) malloc_trim(0);
}

std::string Explanation(const std::string& problem) {
  if (problem.empty()) return "SERVING again";
  return absl::StrCat("NOT_SERVING: ", problem == "core_thread" ? "the core thread does not answer"
                                       : problem == "database"  ? "the database cannot be written"
                                                                : "no calls of workers are taken");
}

}  // namespace

Watchdog::Watchdog(Coordinator& coordinator, absl::Duration stuck_after,
                   std::function<void(const std::string&)> report)
    : coordinator_(coordinator), stuck_after_(stuck_after), report_(std::move(report)) {
  {
    absl::MutexLock lock(&answer_->mutex);
    answer_->at = Clock::System().Steady();
  }
  thread_ = std::thread([this] { Run(); });
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_one();
  thread_.join();
}

void Watchdog::Run() {
  const auto period = absl::ToChronoNanoseconds(std::min(kPeriod, stuck_after_ / 2));
  std::string problem;
  absl::Duration next_trim = Clock::System().Steady() + kTrimPeriod;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (stop_.wait_for(lock, period, [this] { return stopping_; })) return;
    }
    if (const std::string now = Check(); now != problem) {
      problem = now;
      spdlog::log(problem.empty() ? spdlog::level::info : spdlog::level::err, "the health check reports {}",
                  Explanation(problem));
      report_(problem);
    }
    if (Clock::System().Steady() < next_trim) continue;
    TrimMemory();
    next_trim = Clock::System().Steady() + kTrimPeriod;
  }
}

std::string Watchdog::Check() {
  bool ask = false;
  {
    absl::MutexLock lock(&answer_->mutex);
    ask = !std::exchange(answer_->pending, true);
    if (!ask)
      return Clock::System().Steady() - answer_->at < stuck_after_ ? ProblemOf(*answer_) : "core_thread";
    answer_->at = Clock::System().Steady();  // the time of the request, until the core thread answers
  }
  coordinator_.Read([answer = answer_](const State* state) {
    absl::MutexLock lock(&answer->mutex);
    answer->pending = false;
    const db::Micros failed = state == nullptr ? 0 : state->commit_failed;
    if (failed != std::exchange(answer->commit_failed, failed))
      answer->failure_seen = Clock::System().Steady();
    answer->can_write =
        state != nullptr && (failed == 0 || Clock::System().Steady() - answer->failure_seen > kFailureCounts);
  });
  absl::MutexLock lock(&answer_->mutex);
  return ProblemOf(*answer_);
}

std::string Watchdog::ProblemOf(const Answer& answer) const {
  if (!answer.can_write) return "database";
  return coordinator_.TakesCalls() ? "" : "worker_calls";
}

}  // namespace scalelab::server
