#include "server/services/call_pool.h"

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "proto/status.h"

namespace scalelab::server {
namespace {

absl::Status Stopping() {
  return MakeError(absl::StatusCode::kUnavailable, "STOPPING",
                   "scalelabd is stopping; try again when it is back");
}

}  // namespace

struct CallPool::Shared {
  std::string kind;
  size_t queue_limit = 0;
  absl::Mutex mutex;
  absl::CondVar arrived;
  std::deque<Work> queue ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  int alive ABSL_GUARDED_BY(mutex) = 0;  // threads that have not ended
};

CallPool::CallPool(std::string kind, int threads, size_t queue_limit) : shared_(std::make_shared<Shared>()) {
  shared_->kind = std::move(kind);
  shared_->queue_limit = queue_limit;
  {
    absl::MutexLock lock(&shared_->mutex);
    shared_->alive = threads;
  }
  threads_.reserve(threads);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([shared = shared_] { Serve(shared); });
}

CallPool::~CallPool() { Stop(absl::InfiniteDuration()); }

void CallPool::Run(Work work) {
  absl::Status refused;
  {
    absl::MutexLock lock(&shared_->mutex);
    if (shared_->stopping) {
      refused = Stopping();
    } else if (shared_->queue.size() < shared_->queue_limit) {
      shared_->queue.push_back(std::move(work));
      shared_->arrived.Signal();
      return;
    }
  }
  if (refused.ok()) {
    refused = MakeError(
        absl::StatusCode::kResourceExhausted, "TOO_MANY_CALLS",
        absl::StrCat("scalelabd has too many ", shared_->kind, " in flight; try again in 5 seconds"));
  }
  work(refused);
}

bool CallPool::Stop(absl::Duration grace) {
  if (threads_.empty()) return true;
  std::deque<Work> left;
  bool ended = false;
  {
    absl::MutexLock lock(&shared_->mutex);
    shared_->stopping = true;
    shared_->arrived.SignalAll();
    ended = shared_->mutex.AwaitWithTimeout(absl::Condition(
                                                +[](int* alive) { return *alive == 0; }, &shared_->alive),
                                            grace);
    left.swap(shared_->queue);
  }
  for (Work& work : left) work(Stopping());
  for (std::thread& thread : threads_) {
    if (ended)
      thread.join();
    else
      thread.detach();
  }
  threads_.clear();
  return ended;
}

void CallPool::Serve(const std::shared_ptr<Shared>& shared) {
  while (true) {
    Work work;
    {
      absl::MutexLock lock(&shared->mutex);
      while (shared->queue.empty() && !shared->stopping) shared->arrived.Wait(&shared->mutex);
      if (shared->queue.empty()) {
        --shared->alive;
        return;
      }
      work = std::move(shared->queue.front());
      shared->queue.pop_front();
    }
    work(absl::OkStatus());
  }
}

}  // namespace scalelab::server
