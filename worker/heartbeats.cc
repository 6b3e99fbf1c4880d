#include "worker/heartbeats.h"

#include <utility>

#include "planted/bug.h"
#include "worker/process/steady_time.h"

namespace scalelab::worker {

Heartbeats::Heartbeats(std::unique_ptr<CoordinatorClient> client, absl::Duration pause)
    : Heartbeats(std::move(client), pause, SteadyNow) {
  if (!Planted(Bug::kHeartbeatsOnLoop)) thread_ = std::thread([this] { Run(); });
}

Heartbeats::Heartbeats(std::unique_ptr<CoordinatorClient> client, absl::Duration pause,
                       std::function<absl::Duration()> now)
    : pause_(pause), now_(std::move(now)), client_(std::move(client)) {}

Heartbeats::~Heartbeats() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Heartbeats::Synchronize(const v1::SynchronizeRequest& request, Synchronized done) {
  std::lock_guard send(send_mutex_);
  uint64_t number;
  bool cancel;
  {
    std::lock_guard lock(mutex_);
    last_ = request;
    number = ++number_;
    due_.reset();
    cancel = std::exchange(repetition_in_flight_, false);
  }
  if (cancel) client_->CancelSynchronize();
  client_->Synchronize(request, [this, number, done = std::move(done)](auto response) {
    OnAnswered(number, response.status());
    done(std::move(response));
  });
}

void Heartbeats::CancelSynchronize() {
  std::lock_guard send(send_mutex_);
  {
    std::lock_guard lock(mutex_);
    last_.reset();
    repetition_in_flight_ = false;
  }
  client_->CancelSynchronize();
}

void Heartbeats::ReportEvents(const v1::ReportEventsRequest& request, Reported done) {
  client_->ReportEvents(request, std::move(done));
}

void Heartbeats::OnAnswered(uint64_t number, const absl::Status& status) {
  std::lock_guard lock(mutex_);
  if (number != number_) return;
  repetition_in_flight_ = false;
  // After an error the loop itself waits before it retries (backoff.h).
  due_ = now_() + (status.ok() ? pause_ : 3 * pause_);
  // The allocation is over.
  if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status)) last_.reset();
  changed_.notify_all();
}

void Heartbeats::Run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (!last_.has_value() || !due_.has_value()) {
      changed_.wait(lock);
      continue;
    }
    const absl::Duration left = *due_ - now_();
    if (left > absl::ZeroDuration()) {
      changed_.wait_until(lock, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(left));
      continue;
    }
    lock.unlock();
    Step();
    lock.lock();
  }
}

absl::Duration Heartbeats::NextStep() {
  std::lock_guard lock(mutex_);
  return last_.has_value() && due_.has_value() ? *due_ : absl::InfiniteDuration();
}

void Heartbeats::Step() {
  v1::SynchronizeRequest request;
  uint64_t number;
  {
    std::lock_guard lock(mutex_);
    if (!last_.has_value() || !due_.has_value() || *due_ > now_()) return;
    request = *last_;
    number = number_;
  }
  Repeat(request, number);
}

// Sends `request` again, unless there has been a call since call `number`.
void Heartbeats::Repeat(const v1::SynchronizeRequest& request, uint64_t number) {
  std::lock_guard send(send_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (number != number_ || !last_.has_value()) return;
    number = ++number_;
    due_.reset();
    repetition_in_flight_ = true;
  }
  client_->Synchronize(request, [this, number](auto response) { OnAnswered(number, response.status()); });
}

}  // namespace scalelab::worker
