// Sends the notifications of the outbox.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "db/outbox/outbox.h"
#include "db/store.h"
#include "server/time/steady_mutex.h"
#include "server/time/stop_signal.h"

namespace scalelab::server {

struct SenderOptions {
  // Delivers a notification, like Channels::Deliver. Called from several threads.
  std::function<absl::Status(const db::NoticeRow&)> deliver;
  std::function<absl::Time()> now;  // the wall clock
  // Time between two reads of the outbox when no notification is due.
  absl::Duration period = absl::Seconds(2);
  // Delay before the first retry. It doubles with each further failure, up to `longest_retry`. A notification that is
  // older than `give_up` is not retried.
  absl::Duration first_retry = absl::Seconds(30), longest_retry = absl::Hours(1), give_up = absl::Hours(24);
};

// Sends the notifications of the outbox, in a few threads that run from the constructor to Stop. Sends one notification at a
// time to each receiver, so that a receiver that does not answer delays no other receiver. Delivers each notification at
// least once: after a crash between a delivery and its record, it is sent again with the same id.
class Sender {
 public:
  // `store` must outlive this object.
  Sender(SenderOptions options, db::Store& store);
  // Calls Stop with an infinite grace.
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // Ends the threads. Returns false if one of them is still in a delivery after `grace`: this object and the store must then
  // stay alive until the process ends.
  bool Stop(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the first notification that is due and whose receiver is not busy, if there is one. Prefers those
  // that are not in `unstored_`.
  absl::StatusOr<std::optional<db::NoticeRow>> FindNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether a notification was due, and its result was stored.
  bool SendOne() ABSL_LOCKS_EXCLUDED(mutex_);
  // Delivers the notification. Returns it with the result.
  db::NoticeRow Send(db::NoticeRow notice);

  const SenderOptions options_;
  db::Store& store_;
  StopSignal stop_;
  SteadyMutex mutex_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;             // threads
  std::set<std::string> busy_ ABSL_GUARDED_BY(mutex_);  // receivers to which a thread sends
  // Results of deliveries that the database did not accept, by id. They are stored later, without another delivery.
  std::map<int64_t, db::NoticeRow> unstored_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
  // Set after a search found due notifications for busy receivers only. As long as the mark is the same and
  // all these receivers are busy, another search would read all of these notifications and find no other.
  std::optional<db::DueMark> searched_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace scalelab::server
