#include "server/services/reader_pool.h"

#include <utility>

#include "proto/status.h"

namespace scalelab::server {

ReaderPool::ReaderPool(int threads, size_t queue_limit) : queue_limit_(queue_limit) {
  threads_.reserve(threads);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Serve(); });
}

ReaderPool::~ReaderPool() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    arrived_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ReaderPool::Run(absl::AnyInvocable<void(absl::Status)> work) {
  {
    absl::MutexLock lock(&mutex_);
    if (queue_.size() < queue_limit_) {
      queue_.push_back(std::move(work));
      arrived_.Signal();
      return;
    }
  }
  work(MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_READS",
                 "scalelabd has too many database reads in flight; try again later"));
}

void ReaderPool::Serve() {
  while (true) {
    absl::AnyInvocable<void(absl::Status)> work;
    {
      absl::MutexLock lock(&mutex_);
      while (queue_.empty() && !stopping_) arrived_.Wait(&mutex_);
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work(absl::OkStatus());
  }
}

}  // namespace scalelab::server
