// A stand-in for NCCL's functions that manage a communicator. A test decides when its calls end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "worker/trainer/comm/nccl_handle.h"

namespace scalelab::trainer {

// One communicator in the process, because NCCL's functions have no context.
class FakeNccl {
 public:
  // A barrier that blocks threads until a test opens it. The wait is limited, so that a broken test ends.
  class Door {
   public:
    void Open() {
      std::lock_guard lock(mutex_);
      open_ = true;
      changed_.notify_all();
    }
    bool Wait() {
      std::unique_lock lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return open_; });
    }
    // Blocks until a thread waits at the door.
    bool Reached() {
      std::unique_lock lock(mutex_);
      return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return waiting_ > 0; });
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = false;
    int waiting_ = 0;
  };

  FakeNccl() { current = this; }
  // Waits for the end of abandoned calls.
  ~FakeNccl() {
    std::unique_lock lock(mutex_);
    left_.wait(lock, [&] { return calls_ == 0; });
    current = nullptr;
  }

  static const NcclFunctions& Functions() {
    static constexpr NcclFunctions kFunctions{
        .new_id = [](std::string* id) { return id->assign(128, 'i'), 0; },
        .connect =
            [](ncclComm** comm, int, const std::string&, int, int gpu, bool blocking) {
              const Inside inside;
              current->gpu = gpu;
              current->blocking = blocking;
              if (current->connect_waits) current->connected.Wait();
              *comm = reinterpret_cast<ncclComm*>(current);
              return 0;
            },
        .async_error = [](ncclComm*, int* state) { return *state = current->state, 0; },
        .finalize = [](ncclComm*) { return 0; },
        .destroy = [](ncclComm*) { return current->destroyed.Open(), 0; },
        .abort =
            [](ncclComm*) {
              const Inside inside;
              current->aborted.Open();
              if (current->abort_waits) current->abort_ends.Wait();
              return 0;
            },
        .error_text = [](int result, ncclComm*) { return "result " + std::to_string(result) + "\nmore"; },
    };
    return kFunctions;
  }

  bool connect_waits = false;  // until `connected` is opened
  bool abort_waits = false;    // until `abort_ends` is opened
  int state = 0;               // what async_error returns
  Door connected, aborted, abort_ends, destroyed;
  int gpu = -1;
  bool blocking = false;

 private:
  // A call in progress.
  struct Inside {
    Inside() {
      std::lock_guard lock(current->mutex_);
      ++current->calls_;
    }
    ~Inside() {
      std::lock_guard lock(current->mutex_);
      --current->calls_;
      current->left_.notify_all();
    }
  };

  static inline FakeNccl* current = nullptr;
  std::mutex mutex_;
  std::condition_variable left_;
  int calls_ = 0;
};

}  // namespace scalelab::trainer
