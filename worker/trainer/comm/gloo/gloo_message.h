// A send or receive over Gloo. Includes Gloo's headers.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "worker/trainer/comm/gloo/gloo_transport.h"
#include "worker/trainer/comm/gloo/gloo_watchdog.h"
#include "worker/trainer/comm/operation.h"

namespace scalelab::trainer {

// Gloo's own thread executes the operation. Gloo has no function that tests whether it has ended, and a wait
// that times out closes all connections. Therefore the first call of Done starts a thread that waits. The
// watchdog ends the wait if the operation exceeds its timeout.
class GlooMessage : public Work {
 public:
  // A function that throws the error of an operation that Gloo has ended with `reason`.
  using Fail = std::function<void(const Operation& operation, const std::string& reason)>;

  // `peer` is the other rank, or Operation::kAnyRank to receive from any rank. `members` are the ranks of a
  // group in the run; empty means all ranks. `transport`, `watchdog` and `members` must outlive the message.
  GlooMessage(GlooTransport& transport, GlooWatchdog& watchdog, const at::Tensor& tensor, const char* what,
              int peer, RunningClock::time_point deadline, const std::vector<int>& members, Fail fail);
  // Waits, because Gloo must not write into a freed tensor.
  ~GlooMessage() override;

  void Start(bool send);
  void Wait() override;
  bool Done() override;
  // Returns the sender of a receive that has ended.
  int source() const { return source_; }

 private:
  void WaitForGloo();

  GlooTransport& transport_;
  GlooWatchdog& watchdog_;
  const std::vector<int>& members_;
  const at::Tensor tensor_;
  Operation operation_;
  const Fail fail_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  bool send_ = false, done_ = false;
  bool in_flight_ = false;  // whether Gloo may still use the tensor
  int source_ = Operation::kAnyRank;
  std::shared_future<void> waiting_;  // the last member, because its thread uses all others
};

}  // namespace scalelab::trainer
