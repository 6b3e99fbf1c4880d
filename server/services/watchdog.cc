#include "server/services/watchdog.h"

#include <malloc.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(1);
// A failed commit with no later one says little about the present.
constexpr absl::Duration kFailureCounts = absl::Minutes(1);
constexpr absl::Duration kTrimPeriod = absl::Seconds(10);
// The C library keeps freed memory after a large request. Less than this is not worth the work.
constexpr size_t kWorthTrimming = size_t{64} << 20;

void TrimMemory() {
  if (mallinfo2().fordblks > kWorthTrimming) malloc_trim(0);
}

}  // namespace

Watchdog::Watchdog(Coordinator& coordinator, absl::Duration stuck_after, std::function<void(bool)> report)
    : coordinator_(coordinator), stuck_after_(stuck_after), report_(std::move(report)) {
  {
    absl::MutexLock lock(&answer_->mutex);
    answer_->at = absl::Now();
  }
  thread_ = std::thread([this] { Run(); });
}

Watchdog::~Watchdog() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void Watchdog::Run() {
  bool healthy = true;
  absl::Time next_trim = absl::Now() + kTrimPeriod;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), std::min(kPeriod, stuck_after_ / 2))) return;
    }
    const bool now_healthy = Check();
    if (now_healthy != healthy) {
      spdlog::log(now_healthy ? spdlog::level::info : spdlog::level::err, "the health check reports {}",
                  now_healthy ? "SERVING again"
                              : "NOT_SERVING: the core thread or the database does not answer, or no calls "
                                "of workers are taken");
      report_(now_healthy);
      healthy = now_healthy;
    }
    if (absl::Now() < next_trim) continue;
    TrimMemory();
    next_trim = absl::Now() + kTrimPeriod;
  }
}

bool Watchdog::Check() {
  bool ask = false;
  {
    absl::MutexLock lock(&answer_->mutex);
    ask = !std::exchange(answer_->pending, true);
    if (!ask)
      return absl::Now() - answer_->at < stuck_after_ && answer_->can_write && coordinator_.TakesCalls();
    answer_->at = absl::Now();  // of the question, until the answer comes
  }
  coordinator_.Read([answer = answer_](const State* state) {
    absl::MutexLock lock(&answer->mutex);
    answer->pending = false;
    answer->can_write =
        state != nullptr && (state->commit_failed == 0 ||
                             absl::Now() - absl::FromUnixMicros(state->commit_failed) > kFailureCounts);
  });
  absl::MutexLock lock(&answer_->mutex);
  return answer_->can_write && coordinator_.TakesCalls();
}

}  // namespace scalelab::server
