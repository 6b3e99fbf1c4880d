#include "server/rpc/call_pool.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "planted/bug.h"
#include "proto/status.h"

namespace scalelab::server {
namespace {

absl::Status Stopping() {
  return MakeError(absl::StatusCode::kUnavailable, "STOPPING",
                   "scalelabd is stopping; try again when it is back");
}

}  // namespace

namespace {

// Part of the queue that works on one subject may take.
constexpr size_t kShareOfSubject = 8;

}  // namespace

struct CallPool::Shared {
  struct Entry {
    std::string subject;
    Work work;
  };
  size_t Waiting(const std::string& subject) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return std::count_if(queue.begin(), queue.end(),
                         [&](const Entry& entry) { return entry.subject == subject; });
  }
  // Returns the first entry whose subject no thread works on.
  std::deque<Entry>::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return std::find_if(queue.begin(), queue.end(),
                        [this](const Entry& entry) { return !busy.contains(entry.subject); });
  }

  std::string kind;
  size_t queue_limit = 0;
  absl::Mutex mutex;
  absl::CondVar arrived;
  std::deque<Entry> queue ABSL_GUARDED_BY(mutex);
  std::set<std::string> busy ABSL_GUARDED_BY(mutex);  // subjects of works in progress
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

void CallPool::Run(Work work, const std::string& subject) {
  absl::Status refused;
  {
    absl::MutexLock lock(&shared_->mutex);
    if (shared_->stopping) {
      refused = Stopping();
    } else if ((shared_->queue.size() < shared_->queue_limit || Planted(Bug::kCallQueueUnbounded)) &&
               (subject.empty() || shared_->Waiting(subject) < shared_->queue_limit / kShareOfSubject)) {
      shared_->queue.push_back({subject, std::move(work)});
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

size_t CallPool::waiting() const {
  absl::MutexLock lock(&shared_->mutex);
  return shared_->queue.size();
}

bool CallPool::Stop(absl::Duration grace) {
  if (threads_.empty()) return true;
  std::deque<Shared::Entry> left;
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
  for (Shared::Entry& entry : left) entry.work(Stopping());
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
    Shared::Entry entry;
    {
      absl::MutexLock lock(&shared->mutex);
      auto next = shared->Next();
      for (; next == shared->queue.end(); next = shared->Next()) {
        if (shared->stopping) {
          --shared->alive;
          return;
        }
        shared->arrived.Wait(&shared->mutex);
      }
      entry = std::move(*next);
      shared->queue.erase(next);
      if (!entry.subject.empty()) shared->busy.insert(entry.subject);
    }
    entry.work(absl::OkStatus());
    if (entry.subject.empty()) continue;
    entry.work = nullptr;
    absl::MutexLock lock(&shared->mutex);
    shared->busy.erase(entry.subject);
    shared->arrived.Signal();
  }
}

}  // namespace scalelab::server
