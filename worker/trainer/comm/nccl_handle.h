// An NCCL communicator whose calls end, although NCCL's own calls may wait for other ranks without a limit.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"

struct ncclComm;  // NCCL's communicator; this header does not need NCCL

namespace scalelab::trainer {

// The functions of NCCL that manage a communicator. Tests replace them. A result is an ncclResult_t.
struct NcclFunctions {
  static constexpr int kSuccess = 0, kInProgress = 7;

  // Returns a new id in `id`.
  int (*new_id)(std::string* id);
  // Connects `size` ranks that pass the same id, each on its GPU number `gpu`. If `blocking`, it returns when all ranks are
  // connected, and later calls when their work is enqueued; else each call may return kInProgress.
  int (*connect)(ncclComm** comm, int size, const std::string& id, int rank, int gpu, bool blocking);
  // Returns the state of the communicator in `state`.
  int (*async_error)(ncclComm* comm, int* state);
  int (*finalize)(ncclComm* comm);
  int (*destroy)(ncclComm* comm);
  int (*abort)(ncclComm* comm);
  // Returns the text of a result; `comm` may be null.
  std::string (*error_text)(int result, ncclComm* comm);
};

// Throws std::runtime_error with NCCL's error text. Any thread may call.
class NcclHandle {
 public:
  // Called repeatedly while NCCL is busy. Throws to give up.
  using Patience = std::function<void()>;
  using Enqueue = std::function<int(ncclComm*)>;

  // kBlocking is for collective operations. NCCL starts a thread for each call on a kNonBlocking communicator, but a call
  // there does not wait for the other rank, which may be late with its part of a message.
  enum class Mode { kBlocking, kNonBlocking };

  // `functions` must outlive the process. Abort waits at most `abort_limit`.
  NcclHandle(const NcclFunctions& functions, Mode mode,
             std::chrono::milliseconds abort_limit = std::chrono::seconds(10));
  // Aborts the communicator if Finish has not ended it.
  ~NcclHandle() { Abort(); }
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  std::string NewId() const;

  // Connects `size` ranks that pass the same `id`. Returns when all ranks are connected.
  void Join(const std::string& id, int size, int rank, int gpu, const Patience& patience);
  // Makes one NCCL call, which must not throw. Returns when its work is enqueued on the stream.
  void Call(const Enqueue& enqueue, const Patience& patience);
  // Returns NCCL's asynchronous error; empty if there is none.
  std::string AsyncError();
  // Finalizes and destroys the communicator. All operations must have ended.
  void Finish(const Patience& patience);
  // Ends everything at once, calls of other threads and kernels on the GPU that wait for other ranks included. NCCL returns
  // only after the graphs with recorded operations were destroyed, so the caller must not be the thread that owns them.
  void Abort();

 private:
  void AwaitReady(const Patience& patience);
  void Check(int result, ncclComm* comm) const;

  const NcclFunctions& nccl_;
  const Mode mode_;
  const std::chrono::milliseconds abort_limit_;

  std::mutex mutex_;  // not held while waiting
  std::condition_variable returned_;
  ncclComm* comm_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;  // in progress
};

}  // namespace scalelab::trainer
