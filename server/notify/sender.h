// Sends the notifications of the outbox.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "db/store.h"

namespace scalelab::server {

struct SenderOptions {
  // As Channels::Deliver. Called from several threads.
  std::function<absl::Status(const db::NoticeRow&)> deliver;
  std::function<absl::Time()> now;  // the wall clock
  // Time between two looks at the outbox when nothing is due.
  absl::Duration period = absl::Seconds(2);
  // Time after the first failure; twice as long after each further one, up to the longest. A notification that is older
  // than `give_up` at a failure is given up.
  absl::Duration first_retry = absl::Seconds(30), longest_retry = absl::Hours(1), give_up = absl::Hours(24);
};

// Has a few threads from the constructor to Stop. Notifications to one receiver are sent one at a time, so that a receiver
// that does not answer delays only its own. At least once: after a crash between the delivery and its record, a
// notification is sent again, with the same id.
class Sender {
 public:
  // `store` must outlive this object.
  Sender(SenderOptions options, db::Store& store);
  // Like Stop, without a limit.
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // Ends the threads. Returns false if one of them is still in a delivery after `grace`: this object and the store must then
  // stay alive until the process ends.
  bool Stop(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether a notification was due.
  bool SendOne() ABSL_LOCKS_EXCLUDED(mutex_);
  void Send(db::NoticeRow notice);

  const SenderOptions options_;
  db::Store& store_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;             // threads
  std::set<std::string> busy_ ABSL_GUARDED_BY(mutex_);  // receivers to which a thread sends
  std::vector<std::thread> threads_;
};

}  // namespace scalelab::server
