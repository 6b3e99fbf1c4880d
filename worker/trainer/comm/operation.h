// A pending communication operation. The caller creates it, the communication thread executes it, and any
// thread may wait for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/comm/peers/running_clock.h"
#include "worker/trainer/device/device_event.h"

namespace scalelab::trainer {

class Operation {
 public:
  static constexpr int kAllRanks = -1, kAnyRank = -2;

  // `what` is a literal such as "all-reduce". `peer` is the other rank of a send or receive, kAnyRank for a
  // receive from any rank, and kAllRanks for a collective operation.
  explicit Operation(const char* what, int peer = kAllRanks) : what(what), peer(peer) {}
  virtual ~Operation() = default;

  bool collective() const { return peer == kAllRanks; }

  // Marks the operation as ended and wakes its waiters. Must be called once. `error` is null if the result
  // is in place.
  void Complete(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    SetEnd();
    error_ = std::move(error);
    over_.store(true, std::memory_order_release);
    changed_.notify_all();
  }
  bool done() const { return over_.load(std::memory_order_acquire); }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done(); });
    if (error_) std::rethrow_exception(error_);
  }

  const char* const what;  // "all-reduce"
  const int peer;
  RunningClock::time_point deadline;  // set when it starts
  // The time in which the operation was in progress. `begin` is set when it starts. Complete sets `end` on
  // the host's clock, unless `end` is a point on a device. Both may be read after the operation has ended.
  // Their memory is separate, so that a span does not keep the tensors of the operation alive.
  struct Times {
    DeviceEvent begin, end;
  };
  const std::shared_ptr<Times> times = std::make_shared<Times>();
  DeviceEvent &begin = times->begin, &end = times->end;

 private:
  virtual void SetEnd() { end = DeviceEvent(at::kCPU); }

  std::mutex mutex_;  // guards error_
  std::condition_variable changed_;
  std::atomic<bool> over_ = false;
  std::exception_ptr error_;
};

// Returns the span of an operation that has ended.
inline Span SpanOf(const Operation& operation) {
  return {{operation.times, &operation.begin}, {operation.times, &operation.end}};
}

// Returns a sentence about a timeout, as the symptom for PeerWatch::Investigate.
inline std::string LateSentence(const Operation& operation, std::chrono::milliseconds timeout) {
  std::ostringstream sentence;
  sentence << operation.what << " timed out after " << static_cast<double>(timeout.count()) / 1000 << " s";
  return sentence.str();
}

}  // namespace scalelab::trainer
