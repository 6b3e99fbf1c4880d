// An NCCL communicator with calls that can be ended. NCCL's own calls may wait for other ranks
// without a limit.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

struct ncclComm;  // NCCL's communicator; this header does not need NCCL

namespace scalelab::trainer {

// The functions of NCCL that manage a communicator. Tests replace them. A result is an ncclResult_t.
struct NcclFunctions {
  static constexpr int kSuccess = 0, kInProgress = 7;

  // Returns a new id in `id`.
  int (*new_id)(std::string* id);
  // Connects `size` ranks that pass the same id, each on its GPU number `gpu`. If `blocking`, returns
  // when all ranks are connected, and later calls return when their work is enqueued. Otherwise each call
  // may return kInProgress.
  int (*connect)(ncclComm** comm, int size, const std::string& id, int rank, int gpu, bool blocking);
  // Returns the state of the communicator in `state`.
  int (*async_error)(ncclComm* comm, int* state);
  int (*finalize)(ncclComm* comm);
  int (*destroy)(ncclComm* comm);
  int (*abort)(ncclComm* comm);
  // Returns the text of a result; `comm` may be null.
  std::string (*error_text)(int result, ncclComm* comm);
};

// Methods throw std::runtime_error with NCCL's error text. Any thread may call them.
class NcclHandle {
 public:
  // A function that is called repeatedly while NCCL is busy. It throws to end the wait.
  using Patience = std::function<void()>;
  using Enqueue = std::function<int(ncclComm*)>;

  // kBlocking is for collective operations. A call on a kNonBlocking communicator does not wait for the other
  // rank, which may send or receive its message late; but NCCL starts a thread for each of these calls.
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
  // Calls `enqueue`, which makes one NCCL call and must not throw. Returns when its work is enqueued
  // on the stream.
  void Call(const Enqueue& enqueue, const Patience& patience);
  // Returns NCCL's asynchronous error; "" if there is none.
  std::string AsyncError();
  // Finalizes and destroys the communicator. All operations must have ended.
  void Finish(const Patience& patience);
  // Ends all operations at once, including calls of other threads and kernels on the GPU that wait for other
  // ranks. NCCL returns only after the graphs with recorded operations were destroyed, so the thread that
  // owns these graphs must not call Abort.
  void Abort();

 private:
  void AwaitReady(const Patience& patience);
  void Check(int result, ncclComm* comm) const;

  const NcclFunctions& nccl_;
  const Mode mode_;
  const std::chrono::milliseconds abort_limit_;

  std::mutex mutex_;  // guards the members below; not held while waiting
  std::condition_variable returned_;
  ncclComm* comm_ = nullptr;
  int calls_ = 0;  // number of calls in progress
};

}  // namespace scalelab::trainer
