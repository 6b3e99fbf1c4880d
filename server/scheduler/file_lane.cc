#include "server/scheduler/file_lane.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "server/time/clock.h"
#include "server/time/steady_mutex.h"

namespace scalelab::server {

struct FileLane::Shared {
  SteadyMutex mutex;
  absl::AnyInvocable<absl::Status()> work ABSL_GUARDED_BY(mutex);  // waits for the thread
  bool busy ABSL_GUARDED_BY(mutex) = false;                        // an operation waits or is in progress
  absl::Duration began ABSL_GUARDED_BY(mutex);                     // when Run was called for it
  absl::Status result ABSL_GUARDED_BY(mutex);                      // of the last operation that has ended
  bool stopping ABSL_GUARDED_BY(mutex) = false;
};

FileLane::FileLane(absl::Duration limit)
    : limit_(limit), shared_(std::make_shared<Shared>()), thread_([shared = shared_] { Serve(shared); }) {}

FileLane::~FileLane() {
  bool blocked = false;
  {
    SteadyMutexLock lock(&shared_->mutex);
    shared_->stopping = true;
    blocked = shared_->busy;
    shared_->mutex.SignalAll();
  }
  if (blocked)
    thread_.detach();
  else
    thread_.join();
}

absl::Status FileLane::Run(absl::AnyInvocable<absl::Status()> work) {
  SteadyMutexLock lock(&shared_->mutex);
  if (!shared_->busy) {
    shared_->work = std::move(work);
    shared_->busy = true;
    shared_->began = Clock::System().Steady();
    shared_->mutex.SignalAll();
    const auto over = [this] {
      shared_->mutex.AssertHeld();
      return !shared_->busy;
    };
    if (shared_->mutex.AwaitWithTimeout(over, limit_)) return shared_->result;
  }
  const absl::Duration blocked = Clock::System().Steady() - shared_->began;
  return absl::UnavailableError(
      absl::StrCat("no response for ", absl::FormatDuration(absl::Trunc(blocked, absl::Milliseconds(100)))));
}

void FileLane::Serve(const std::shared_ptr<Shared>& shared) {
  while (true) {
    absl::AnyInvocable<absl::Status()> work;
    {
      SteadyMutexLock lock(&shared->mutex);
      while (shared->work == nullptr && !shared->stopping) shared->mutex.WaitFor(absl::InfiniteDuration());
      if (shared->stopping) return;
      work = std::move(shared->work);
      shared->work = nullptr;
    }
    absl::Status result = work();
    work = nullptr;
    SteadyMutexLock lock(&shared->mutex);
    shared->result = std::move(result);
    shared->busy = false;
    shared->mutex.SignalAll();
  }
}

}  // namespace scalelab::server
