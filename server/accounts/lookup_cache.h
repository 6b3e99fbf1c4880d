// A cache of answers that may come slowly or not at all, such as those of a user directory like LDAP.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/time/steady_mutex.h"

namespace scalelab::server {

// Looks up each answer on a separate thread. An error never replaces an answer. Thread-safe.
template <typename Key, typename Answer>
class LookupCache {
 public:
  // Returns the answer, or an error if it cannot be found out now. May block. It may run after the destructor
  // of the cache, so it must own what it uses.
  using LookUp = std::function<absl::StatusOr<Answer>(const Key& key)>;
  // Returns a time as Clock::Steady does. Like LookUp, it must own what it uses.
  using Now = std::function<absl::Duration()>;

  // Runs `work` on a thread that nobody joins. Throws std::system_error if there can be no further thread.
  using Start = std::function<void(std::function<void()> work)>;

  static constexpr absl::Duration kFresh = absl::Minutes(5);  // an older answer is looked up again
  static constexpr absl::Duration kPause = absl::Seconds(5);  // between a failed lookup and the next one
  static constexpr int kMostLookups = 32;                     // maximum number of lookups at the same time

  LookupCache(LookUp look_up, Now now, Start start = StartThread) : shared_(std::make_shared<Shared>()) {
    shared_->look_up = std::move(look_up);
    shared_->now = std::move(now);
    shared_->start = std::move(start);
  }

  // Returns the answer. If it is older than kFresh, looks it up again, and returns the old answer after
  // `patience_with_old` or after an error. Without an old answer, returns UNAVAILABLE after `patience` or
  // after an error. Both times begin when the lookup begins: if it takes longer, the calls after that return
  // at once.
  absl::StatusOr<Answer> Get(const Key& key, absl::Duration patience, absl::Duration patience_with_old) {
    SteadyMutexLock lock(&shared_->mutex);
    Entry& entry = shared_->entries[key];
    const absl::Duration now = shared_->now();
    if (entry.answer.has_value() && now - entry.answered < kFresh) return *entry.answer;
    if (!entry.began.has_value() && now - entry.failed >= kPause) Begin(shared_, key, entry);
    if (entry.began.has_value()) {
      const auto over = [this, &entry] {
        shared_->mutex.AssertHeld();
        return !entry.began.has_value();
      };
      const absl::Duration limit = entry.answer.has_value() ? patience_with_old : patience;
      shared_->mutex.AwaitWithTimeout(over, *entry.began + limit - now);
    }
    if (entry.answer.has_value()) return *entry.answer;
    if (!entry.began.has_value()) return absl::UnavailableError(entry.error.message());
    const absl::Duration waited = shared_->now() - *entry.began;
    return absl::UnavailableError(
        absl::StrCat("no answer for ", absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1)))));
  }

 private:
  struct Entry {
    std::optional<Answer> answer;                       // of the last lookup that succeeded
    absl::Duration answered;                            // when that lookup ended
    std::optional<absl::Duration> began;                // the lookup in flight
    absl::Duration failed = -absl::InfiniteDuration();  // when the last lookup that failed ended
    // Of that lookup.
    absl::Status error = absl::UnavailableError("too many lookups are in flight");
  };
  // Outlives the cache while a lookup is in flight.
  struct Shared {
    LookUp look_up;
    Now now;
    Start start;
    SteadyMutex mutex;
    std::map<Key, Entry> entries ABSL_GUARDED_BY(mutex);  // references to entries stay valid
    int in_flight ABSL_GUARDED_BY(mutex) = 0;
  };

  // The thread is detached, because the lookup may block it for longer than the process runs.
  static void StartThread(std::function<void()> work) { std::thread(std::move(work)).detach(); }

  // Begins a lookup, unless there are too many lookups or threads.
  static void Begin(const std::shared_ptr<Shared>& shared, const Key& key, Entry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared->mutex) {
    if (shared->in_flight >= kMostLookups) return;
    ++shared->in_flight;
    entry.began = shared->now();
    try {
      shared->start([shared, key] {
        absl::StatusOr<Answer> found = shared->look_up(key);
        SteadyMutexLock lock(&shared->mutex);
        End(*shared, shared->entries[key], std::move(found));
        shared->mutex.SignalAll();
      });
    } catch (const std::system_error& error) {
      End(*shared, entry, absl::UnavailableError(absl::StrCat("cannot start a thread: ", error.what())));
    }
  }

  static void End(Shared& shared, Entry& entry, absl::StatusOr<Answer> found)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared.mutex) {
    --shared.in_flight;
    entry.began.reset();
    if (found.ok()) {
      entry.answer = *std::move(found);
      entry.answered = shared.now();
    } else {
      entry.error = found.status();
      entry.failed = shared.now();
    }
  }

  const std::shared_ptr<Shared> shared_;
};

}  // namespace scalelab::server
