// Threads for the parts of calls that block or compute.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace scalelab::server {

// What a work may wait for. Empty strings stand for nothing.
struct Subject {
  // Works with the same name run one at a time, and take at most an eighth of the queue.
  std::string name;
  // Works on the same filesystem, or on anything else that several subjects need, take at most half of the threads and
  // half of the queue.
  std::string filesystem;
};

// A fixed number of threads behind a bounded queue. Neither the core thread nor a thread of gRPC may block, so
// both pass their work to a pool. May be used from any thread.
class CallPool {
 public:
  using Work = absl::AnyInvocable<void(absl::Status)>;

  // `kind` names the work in errors, in the plural: "database reads".
  CallPool(std::string kind, int threads, size_t queue_limit);
  // Like Stop, without a limit.
  ~CallPool();
  CallPool(const CallPool&) = delete;
  CallPool& operator=(const CallPool&) = delete;

  // Calls `work` exactly once: later with OK on a thread of the pool, or at once with an error on the calling thread.
  // The error is RESOURCE_EXHAUSTED if the queue is full, and UNAVAILABLE if the pool has stopped. `work` must not block
  // when it gets an error. `subject` has limits because a file server that does not respond, for example, blocks all works
  // that need it; without limits they would occupy all threads. The threads take one work of each `client` in turn, and the
  // works of one client take at most a quarter of the queue. An empty `client` is the service itself, to which this last
  // limit does not apply.
  void Run(Work work, Subject subject = {}, const std::string& client = "");

  // Returns the number of works that wait for a thread.
  size_t waiting() const;

  // Runs the queued work and ends the threads, for at most `grace`; then calls the remaining work with
  // UNAVAILABLE. Returns whether all threads have ended. A thread that has not ended is blocked in its work.
  // The objects that the work refers to must then exist until the process ends.
  bool Stop(absl::Duration grace);

 private:
  struct Shared;  // outlives the pool while a thread is blocked
  static void Serve(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace scalelab::server
