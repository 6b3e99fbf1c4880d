// One of NCCL's own communicators, in non-blocking mode: no call waits for another rank, and whoever has
// waited long enough can end it.
#pragma once

#include <nccl.h>

#include <functional>
#include <mutex>
#include <string>

namespace scalelab::trainer {

// Throws std::runtime_error in NCCL's words. Any thread calls.
class NcclHandle {
 public:
  // Asked again and again while NCCL is busy; throws to give up.
  using Patience = std::function<void()>;
  using Enqueue = std::function<ncclResult_t(ncclComm_t)>;

  NcclHandle() = default;
  // Aborts what Finish has not ended.
  ~NcclHandle() { Abort(); }
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  static ncclUniqueId NewId();

  // Joins `size` ranks that have the same `id`, on the thread's current GPU. Returns when all have.
  void Join(const ncclUniqueId& id, int size, int rank, const Patience& patience);
  // Makes one call of NCCL; returns when what it asks for is on its stream.
  void Call(const Enqueue& enqueue, const Patience& patience);
  // What has gone wrong since; empty: nothing.
  std::string AsyncError();
  // Says goodbye to the other ranks, with nothing left to do.
  void Finish(const Patience& patience);
  // Ends everything at once; kernels on the GPU that wait for other ranks too.
  void Abort();

 private:
  void AwaitReady(const Patience& patience);

  std::mutex mutex_;  // guards comm_, not while waiting
  ncclComm_t comm_ = nullptr;
};

}  // namespace scalelab::trainer
