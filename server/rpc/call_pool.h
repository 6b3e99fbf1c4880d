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

  // Calls `work` exactly once: with OK on a thread of the pool, or with an error on the calling thread, at once:
  // RESOURCE_EXHAUSTED if the queue is full, UNAVAILABLE if the pool has stopped. `work` must not block when it
  // gets an error. Works with the same `subject` run one at a time, and take at most an eighth of the queue: what blocks
  // one of them, such as a file server, would block the others too, and with them all threads. An empty subject has no
  // such limit. The threads take one work of each `client` in turn, and the works of one client take at most a quarter of
  // the queue. An empty client is the service itself, which has no such limit.
  void Run(Work work, const std::string& subject = "", const std::string& client = "");

  // Returns the number of works that wait for a thread.
  size_t waiting() const;

  // Runs the queued work and ends the threads, for at most `grace`; then calls the remaining work with
  // UNAVAILABLE. Returns whether all threads have ended. A thread that has not is blocked in its work: what the
  // work refers to must then stay alive until the process ends.
  bool Stop(absl::Duration grace);

 private:
  struct Shared;  // outlives the pool while a thread is blocked
  static void Serve(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace scalelab::server
