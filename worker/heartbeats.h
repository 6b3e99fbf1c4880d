// Sends heartbeats while the event loop is blocked, for example by a file server that does not answer.
//
// A decorator of a CoordinatorClient. When a Synchronize call has been answered and the loop does not make
// the next one, a thread repeats the last request. For the coordinator, the node's state has then not
// changed. The answers to these repeated requests are dropped, because the loop's own next call returns the
// same desired state. The thread accesses no file and writes no log, because the loop may be blocked in
// writing the log.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
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
  // Has no thread: the caller calls Step at the time NextStep. `now` is the clock. For simulations.
  Heartbeats(std::unique_ptr<CoordinatorClient> client, absl::Duration pause,
             std::function<absl::Duration()> now);
  ~Heartbeats() override;

  void Synchronize(const v1::SynchronizeRequest& request, Synchronized done) override;
  // Also ends the repetitions, until the next Synchronize.
  void CancelSynchronize() override;
  void ReportEvents(const v1::ReportEventsRequest& request, Reported done) override;

  // Repeats the last request if that is due.
  void Step();
  // Returns when Step has something to do, on the clock; infinite if a call is in flight or there is nothing to repeat.
  absl::Duration NextStep();

 private:
  void Run();
  void Repeat(const v1::SynchronizeRequest& request, uint64_t number);
  void OnAnswered(uint64_t number, const absl::Status& status);

  const absl::Duration pause_;
  const std::function<absl::Duration()> now_;
  std::mutex send_mutex_;  // keeps the order of the calls; never held by a callback

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::optional<v1::SynchronizeRequest> last_;  // absent: there is nothing to repeat
  uint64_t number_ = 0;                         // number of the latest call
  bool repetition_in_flight_ = false;
  // Time of the repetition, see now_; absent: the latest call is in flight.
  std::optional<absl::Duration> due_;
  bool stop_ = false;

  std::unique_ptr<CoordinatorClient> client_;  // its callbacks use the members above
  std::thread thread_;                         // absent in simulations
};

}  // namespace scalelab::worker
