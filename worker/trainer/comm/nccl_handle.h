// An NCCL communicator in non-blocking mode: no call waits for another rank, and the caller can give up
// after a timeout.
#pragma once

#include <nccl.h>

#include <functional>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"

namespace scalelab::trainer {

// Throws std::runtime_error with NCCL's error text. Any thread may call.
class NcclHandle {
 public:
  // Called repeatedly while NCCL is busy. Throws to give up.
  using Patience = std::function<void()>;
  using Enqueue = std::function<ncclResult_t(ncclComm_t)>;

  NcclHandle() = default;
  // Aborts the communicator if Finish has not ended it.
  ~NcclHandle() { Abort(); }
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  static ncclUniqueId NewId();

  // Connects `size` ranks that pass the same `id`, on the thread's current GPU. Returns when all
  // ranks are connected.
  void Join(const ncclUniqueId& id, int size, int rank, const Patience& patience);
  // Makes one NCCL call. Returns when its work is enqueued on the stream.
  void Call(const Enqueue& enqueue, const Patience& patience);
  // Returns NCCL's asynchronous error; empty if there is none.
  std::string AsyncError();
  // Finalizes and destroys the communicator. All operations must have ended.
  void Finish(const Patience& patience);
  // Ends everything at once, including kernels on the GPU that wait for other ranks.
  void Abort();

 private:
  void AwaitReady(const Patience& patience);

  std::mutex mutex_;  // not held while waiting
  ncclComm_t comm_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace scalelab::trainer
