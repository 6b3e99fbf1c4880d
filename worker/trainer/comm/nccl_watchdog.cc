#include "worker/trainer/comm/nccl_watchdog.h"

#include <sched.h>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// The polling interval. It is shorter than the interval of the PeerWatch's reports (100 ms), and long enough
// that polls do not slow down other users of the GPU driver.
constexpr std::chrono::milliseconds kLook{20};

}  // namespace

NcclWatchdog::NcclWatchdog(PeerWatch& watch, std::chrono::milliseconds timeout, Hooks hooks,
                           std::vector<int> members)
    : watch_(watch), timeout_(timeout), hooks_(std::move(hooks)), members_(std::move(members)) {
  thread_ = std::thread(&NcclWatchdog::Run, this);
}

NcclWatchdog::~NcclWatchdog() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclWatchdog::Enqueuing(std::shared_ptr<const DeviceOperation> operation) {
  std::lock_guard lock(mutex_);
  enqueuing_ = std::move(operation);
  enqueue_deadline_ = Now() + timeout_;
}

std::shared_ptr<const DeviceOperation> NcclWatchdog::LateToEnqueue() const {
  std::lock_guard lock(mutex_);
  return Now() > enqueue_deadline_ ? enqueuing_ : nullptr;
}

void NcclWatchdog::Add(std::shared_ptr<DeviceOperation> operation) {
  std::lock_guard lock(mutex_);
  running_.push_back(std::move(operation));
}

void NcclWatchdog::Drain() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return running_.empty() || failed_; });
  }
  ThrowIfFailed();
}

void NcclWatchdog::Await(const DeviceOperation& operation) const {
  for (; !operation.Ended(); sched_yield()) ThrowIfFailed();
  ThrowIfFailed();  // an operation has also ended if it was aborted
}

void NcclWatchdog::ThrowIfFailed() const {
  if (!failed_) return;
  std::lock_guard lock(mutex_);
  std::rethrow_exception(error_);
}

void NcclWatchdog::Fail(const std::string& symptom, int peer) {
  Condemn(symptom, peer);
  ThrowIfFailed();
  std::terminate();  // not reached: Condemn returns after the failure
}

void NcclWatchdog::Run() {
  hooks_.select_gpu();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [&] { return closing_ || failed_; })) {
    lock.unlock();
    try {
      Look();
    } catch (const std::exception& e) {
      Condemn("the GPU failed (" + FirstLine(e.what()) + ")", -1);
    }
    lock.lock();
  }
  lock.unlock();
  if (failed_) hooks_.abort();
}

void NcclWatchdog::Look() {
  while (true) {
    std::shared_ptr<DeviceOperation> first;
    {
      std::lock_guard lock(mutex_);
      if (!running_.empty()) first = running_.front();
    }
    if (!first || !first->Begun()) break;
    if (first->deadline == RunningClock::time_point()) {
      first->deadline = Now() + timeout_;
      if (members_.empty()) watch_.Started(first->what);
    }
    if (!first->Ended()) {
      if (Now() > first->deadline) Condemn(LateSentence(*first, timeout_), -1);
      break;
    }
    if (members_.empty()) watch_.Finished(first->what);
    first->Complete(nullptr);
    std::lock_guard lock(mutex_);
    if (!running_.empty()) running_.pop_front();
    if (running_.empty()) changed_.notify_all();
  }
  if (const auto late = LateToEnqueue()) Condemn(LateSentence(*late, timeout_), -1);
  if (const std::string trouble = hooks_.trouble(); !trouble.empty())
    Condemn("NCCL failed (" + trouble + ")", -1);
  if (watch_.condemned()) Condemn("", -1);
}

void NcclWatchdog::Condemn(const std::string& symptom, int peer) {
  {
    std::unique_lock lock(mutex_);
    if (investigating_) return changed_.wait(lock, [&] { return failed_.load(); });
    investigating_ = true;
  }
  const std::string verdict =
      watch_.condemned() ? watch_.verdict() : watch_.Investigate(symptom, peer, members_);
  {
    std::lock_guard lock(mutex_);
    error_ = std::make_exception_ptr(TrainerError(verdict, ErrorKind::kCommunication));
    failed_ = true;
    for (const auto& operation : running_) operation->Complete(error_);
    running_.clear();
  }
  changed_.notify_all();
}

}  // namespace scalelab::trainer
