#include "worker/trainer/comm/nccl_handle.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

namespace scalelab::trainer {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAsidePoll{1};
// Time that calls in progress have to return before their communicator is aborted. Only a call that waits for
// another rank takes longer, and the abort ends it.
constexpr milliseconds kReturn{1000};
constexpr char kAborted[] = "the communicator was aborted";

// Runs `work` on a new thread, and calls `patience` repeatedly until `work` has ended. If `patience`
// throws, the thread continues to run, because it cannot be interrupted. Therefore `work` must own all
// objects that it uses.
int RunAside(std::function<int()> work, const NcclHandle::Patience& patience) {
  struct Task {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<int> result;
  };
  const auto task = std::make_shared<Task>();
  std::thread([task, work = std::move(work)] {
    const int result = work();
    std::lock_guard lock(task->mutex);
    task->result = result;
    task->changed.notify_all();
  }).detach();
  std::unique_lock lock(task->mutex);
  while (!task->changed.wait_for(lock, kAsidePoll, [&] { return task->result.has_value(); })) {
    lock.unlock();
    patience();
    lock.lock();
  }
  return *task->result;
}

}  // namespace

NcclHandle::NcclHandle(const NcclFunctions& functions, Mode mode, milliseconds abort_limit)
    : nccl_(functions), mode_(mode), abort_limit_(abort_limit) {}

void NcclHandle::Check(int result, ncclComm* comm) const {
  if (result == NcclFunctions::kSuccess || result == NcclFunctions::kInProgress) return;
  const std::string text = nccl_.error_text(result, comm);
  throw std::runtime_error(text.substr(0, text.find('\n')));
}

std::string NcclHandle::NewId() const {
  std::string id;
  Check(nccl_.new_id(&id), nullptr);
  return id;
}

void NcclHandle::Join(const std::string& id, int size, int rank, int gpu, const Patience& patience) {
  struct Made {
    std::mutex mutex;
    ncclComm* comm = nullptr;
    bool abandoned = false;
  };
  const auto made = std::make_shared<Made>();
  const auto connect = [made, &nccl = nccl_, id, size, rank, gpu, blocking = mode_ == Mode::kBlocking] {
    ncclComm* comm = nullptr;
    const int result = nccl.connect(&comm, size, id, rank, gpu, blocking);
    std::lock_guard lock(made->mutex);
    if (!made->abandoned) {
      made->comm = comm;
    } else if (comm != nullptr) {
      nccl.abort(comm);
    }
    return result;
  };
  const auto take = [&] {
    std::scoped_lock lock(made->mutex, mutex_);
    made->abandoned = true;
    comm_ = made->comm;
  };
  try {
    Check(RunAside(connect, patience), nullptr);
  } catch (...) {
    take();
    throw;
  }
  take();
  AwaitReady(patience);
}

void NcclHandle::Call(const Enqueue& enqueue, const Patience& patience) {
  ncclComm* comm = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) throw std::runtime_error(kAborted);
    comm = comm_;
    ++calls_;
  }
  // Do not hold the lock, because the call may wait for another rank until Abort ends it.
  const int result = enqueue(comm);
  {
    std::lock_guard lock(mutex_);
    --calls_;
    returned_.notify_all();
    if (comm_ == nullptr) throw std::runtime_error(kAborted);
    Check(result, comm);
  }
  if (mode_ == Mode::kNonBlocking) AwaitReady(patience);
}

void NcclHandle::AwaitReady(const Patience& patience) {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (comm_ == nullptr) break;
      int state = NcclFunctions::kSuccess;
      Check(nccl_.async_error(comm_, &state), comm_);
      Check(state, comm_);
      if (state == NcclFunctions::kSuccess) return;
    }
    patience();
    std::this_thread::yield();
  }
  patience();
  throw std::runtime_error(kAborted);
}

std::string NcclHandle::AsyncError() {
  std::lock_guard lock(mutex_);
  int state = NcclFunctions::kSuccess;
  if (comm_ == nullptr) return "";
  if (nccl_.async_error(comm_, &state) != NcclFunctions::kSuccess) return "NCCL does not answer";
  try {
    Check(state, comm_);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

void NcclHandle::Finish(const Patience& patience) {
  ncclComm* comm = nullptr;
  {
    std::lock_guard lock(mutex_);
    comm = std::exchange(comm_, nullptr);
  }
  if (comm == nullptr) throw std::runtime_error(kAborted);
  const auto finish = [&nccl = nccl_, comm] {
    int state = nccl.finalize(comm);
    while (state == NcclFunctions::kInProgress) {  // the caller's `patience` limits the wait
      std::this_thread::sleep_for(kAsidePoll);
      if (const int result = nccl.async_error(comm, &state); result != NcclFunctions::kSuccess) return result;
    }
    return state == NcclFunctions::kSuccess ? nccl.destroy(comm) : state;
  };
  Check(RunAside(finish, patience), nullptr);
}

void NcclHandle::Abort() {
  ncclComm* comm = nullptr;
  {
    std::unique_lock lock(mutex_);
    comm = std::exchange(comm_, nullptr);
    if (comm == nullptr) return;
    returned_.wait_for(lock, kReturn, [&] { return calls_ == 0; });
  }
  const auto deadline = std::chrono::steady_clock::now() + abort_limit_;
  try {
    RunAside([&nccl = nccl_, comm] { return nccl.abort(comm); },
             [&] {
               if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("timeout");
             });
  } catch (const std::runtime_error&) {
    // The process is about to fail, so do not wait for NCCL.
  }
}

}  // namespace scalelab::trainer
