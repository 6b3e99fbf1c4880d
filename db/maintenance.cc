#include "db/maintenance.h"

#include <algorithm>

#include "absl/time/time.h"

namespace scalelab::db {
namespace {

// The pause between two transactions of maintenance. It leaves most of the time of the writer and the
// disk to commits.
constexpr absl::Duration kBetweenPieces = absl::Milliseconds(20);
constexpr absl::Duration kIdle = absl::Seconds(1);
constexpr absl::Duration kLongestBackoff = absl::Minutes(5);

}  // namespace

Maintenance::Maintenance(Store& store, std::function<void(const absl::Status&)> report)
    : store_(store), report_(std::move(report)), thread_([this] { Run(); }) {}

Maintenance::~Maintenance() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_one();
  thread_.join();
}

void Maintenance::Run() {
  absl::Duration backoff = kIdle, wait = kIdle;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (stop_.wait_for(lock, absl::ToChronoNanoseconds(wait), [this] { return stopping_; })) return;
    }
    const absl::StatusOr<bool> more = store_.Maintain();
    if (more.ok()) {
      backoff = kIdle;
      wait = *more ? kBetweenPieces : kIdle;
      continue;
    }
    report_(more.status());
    wait = backoff;
    backoff = std::min(2 * backoff, kLongestBackoff);
  }
}

}  // namespace scalelab::db
