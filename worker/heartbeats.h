// Sends heartbeats while the event loop is blocked, for example by a file server that does not answer.
//
// A decorator of a CoordinatorClient. When a Synchronize call has been answered and the loop does not make the next
// one, a thread repeats the last request: to the coordinator the node's state has not changed. The answers to these
// repetitions are dropped, because the loop's own next call returns the same desired state. The thread touches no
// file, and writes no log, because the log may be what the loop is blocked by.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/time/time.h"
#include "worker/coordinator_client.h"

namespace scalelab::worker {

class Heartbeats final : public CoordinatorClient {
 public:
  // `pause`: time between an answer and the repetition; three times as long after an error.
  explicit Heartbeats(std::unique_ptr<CoordinatorClient> client, absl::Duration pause = absl::Seconds(2));
  ~Heartbeats() override;

  void Synchronize(const v1::SynchronizeRequest& request, Synchronized done) override;
  // Also ends the repetitions, until the next Synchronize.
  void CancelSynchronize() override;
  void ReportEvents(const v1::ReportEventsRequest& request, Reported done) override;

 private:
  void Run();
  void Repeat(const v1::SynchronizeRequest& request, uint64_t number);
  void OnAnswered(uint64_t number, const absl::Status& status);

  const absl::Duration pause_;
  std::mutex send_mutex_;  // keeps the order of the calls; never held by a callback

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::optional<v1::SynchronizeRequest> last_;  // absent: there is nothing to repeat
  uint64_t number_ = 0;                         // of the latest call
  bool repetition_in_flight_ = false;
  std::optional<absl::Duration> due_;  // of the repetition, SteadyNow; absent: the latest call is in flight
  bool stop_ = false;

  std::unique_ptr<CoordinatorClient> client_;  // its callbacks use the members above
  std::thread thread_;
};

}  // namespace scalelab::worker
