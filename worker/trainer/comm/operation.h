// An operation on its way: the caller makes it, the communication thread carries it out, anybody waits for
// it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

class Operation {
 public:
  // `peer` is the other rank of a send or receive, -1 for a collective operation.
  explicit Operation(const char* what, int peer = -1) : what(what), peer(peer) {}
  virtual ~Operation() = default;

  bool collective() const { return peer < 0; }

  // Once; `error` is null when the result is in place.
  void Complete(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    done_ = true;
    error_ = std::move(error);
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }

  const char* const what;  // "all-reduce"
  const int peer;
  std::chrono::steady_clock::time_point deadline;  // set at its start

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

// What the caller gets. `waiting` counts those who wait at this moment: the communication thread hurries for
// them.
class OperationWork : public Work {
 public:
  OperationWork(std::shared_ptr<Operation> operation, std::atomic<int>& waiting)
      : operation_(std::move(operation)), waiting_(waiting) {}
  void Wait() override {
    struct Counted {
      explicit Counted(std::atomic<int>& n) : n(n) { n.fetch_add(1, std::memory_order_relaxed); }
      ~Counted() { n.fetch_sub(1, std::memory_order_relaxed); }
      std::atomic<int>& n;
    } counted(waiting_);
    operation_->Wait();
  }

 private:
  std::shared_ptr<Operation> operation_;
  std::atomic<int>& waiting_;
};

// What PeerWatch::Investigate is asked about.
inline std::string LateSentence(const Operation& operation, std::chrono::milliseconds timeout) {
  std::ostringstream sentence;
  sentence << operation.what << " was not over after " << static_cast<double>(timeout.count()) / 1000 << " s";
  return sentence.str();
}

}  // namespace scalelab::trainer
