#include "worker/trainer/comm/nccl_watchdog.h"

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// The polling interval. It is short compared with the reports of the PeerWatch (100 ms), and long enough to
// leave the driver, which the training uses too, mostly free.
constexpr std::chrono::milliseconds kLook{20};

}  // namespace

NcclWatchdog::NcclWatchdog(PeerWatch& watch, std::chrono::milliseconds timeout,
                           std::function<std::string()> trouble, std::function<void()> abort)
    : watch_(watch), timeout_(timeout), trouble_(std::move(trouble)), abort_(std::move(abort)) {
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
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [&] { return closing_; })) {
    if (failed_) continue;
    lock.unlock();
    try {
      Look();
    } catch (const std::exception& e) {
      Condemn("the GPU failed (" + FirstLine(e.what()) + ")", -1);
    }
    lock.lock();
  }
}

void NcclWatchdog::Look() {
  while (true) {
    std::shared_ptr<DeviceOperation> first;
    {
      std::lock_guard lock(mutex_);
      if (!running_.empty()) first = running_.front();
    }
    if (!first || !first->begin.Over()) break;
    if (first->deadline == std::chrono::steady_clock::time_point()) {
      first->deadline = std::chrono::steady_clock::now() + timeout_;
      watch_.Started(first->what);
    }
    if (!first->end.Over()) {
      if (std::chrono::steady_clock::now() > first->deadline) Condemn(LateSentence(*first, timeout_), -1);
      break;
    }
    watch_.Finished(first->what);
    first->Complete(nullptr);
    std::lock_guard lock(mutex_);
    if (!running_.empty()) running_.pop_front();
    if (running_.empty()) changed_.notify_all();
  }
  if (const std::string trouble = trouble_(); !trouble.empty()) Condemn("NCCL failed (" + trouble + ")", -1);
  if (watch_.condemned()) Condemn("", -1);
}

void NcclWatchdog::Condemn(const std::string& symptom, int peer) {
  {
    std::unique_lock lock(mutex_);
    if (investigating_) return changed_.wait(lock, [&] { return failed_.load(); });
    investigating_ = true;
  }
  const std::string verdict = watch_.condemned() ? watch_.verdict() : watch_.Investigate(symptom, peer);
  abort_();
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
