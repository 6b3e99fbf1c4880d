// The interface for communication between the ranks of one run.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker/trainer/device/device_event.h"
#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// Elementwise reductions. kAverage supports floating-point types, and kBitAnd supports int64. Sums of float16
// and bfloat16 are rounded after each addition. A float16 sum beyond 65504 becomes infinite, also with
// kAverage, because kAverage divides the sum (except nccl, which divides first). Tensors of int32 and uint8
// cannot be reduced.
enum class ReduceOp { kSum, kAverage, kMax, kBitAnd };

// A started operation. It is completed even if Wait is never called.
class Work {
 public:
  virtual ~Work() = default;
  // Returns once the result is in place. Throws TrainerError (communication) if the operation failed.
  // For a tensor on a GPU, work that is enqueued on the calling thread's current stream after Wait sees the
  // result. The host does not wait for the GPU, so a failure may be thrown by a later call.
  virtual void Wait() = 0;
  // Returns whether the operation has ended, so that Wait returns or throws at once. Does not block.
  virtual bool Done() = 0;
  // Returns the time in which the operation was in progress on this rank, including the wait for other ranks.
  // Must be called after Wait. Both events are null if the time is not known.
  virtual Span span() const { return {}; }
};

// All ranks of a run, numbered from 0.
//
// Collective calls: all ranks must make the same calls in the same order, with the same shapes and
// types. Collective operations, including started ones, run in the order of the calls. Sends and
// receives are not part of this order. Only one thread at a time may call the methods, but it need not
// always be the same thread.
//
// Tensors are dense blocks of memory (any permutation of strides, the same on all ranks) of type float,
// float16, bfloat16, double, int64, int32 or uint8. The caller must not use a tensor until its operation has
// ended. An operation on a GPU tensor starts after the work that is already on the calling thread's current
// stream. The result of a reduction is equal on all ranks, bit for bit.
//
// An operation fails if it has not ended within the communicator's timeout, counted from its start on this
// rank. Time in which the process was stopped does not count (see RunningClock). All operations fail as soon
// as a rank is known to be lost. Failures throw TrainerError (communication). Its message names the rank that
// did not participate, and the last operation that this rank completed. The communicator cannot be used after a
// failure.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view name() const = 0;

  // Replaces `tensor` by its reduction over all ranks. StartAllReduce returns at once, and AllReduce returns
  // when the result is in place. All ranks must call the same of the two functions.
  virtual std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) = 0;
  virtual void AllReduce(const at::Tensor& tensor, ReduceOp op) { StartAllReduce(tensor, op)->Wait(); }

  // Sets `output` to the reduction of block rank() over all ranks. `input` has size() blocks of the size of
  // `output`, one after another in memory. Does not change `input`.
  virtual std::unique_ptr<Work> StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                                   ReduceOp op) = 0;
  void ReduceScatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
    StartReduceScatter(output, input, op)->Wait();
  }

  // Sets `output` to the `input` of all ranks, in rank order, one after another in memory. `input` may be
  // block rank() of `output` itself.
  virtual std::unique_ptr<Work> StartAllGather(const at::Tensor& output, const at::Tensor& input) = 0;
  void AllGatherInto(const at::Tensor& output, const at::Tensor& input) {
    StartAllGather(output, input)->Wait();
  }

  // Like StartAllGather, for blocks of different sizes: rank r passes counts[r] elements, which may be 0. All
  // ranks must pass the same `counts`.
  virtual std::unique_ptr<Work> StartAllGatherV(const at::Tensor& output, const at::Tensor& input,
                                                const std::vector<int64_t>& counts) = 0;
  void AllGatherV(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& counts) {
    StartAllGatherV(output, input, counts)->Wait();
  }

  // Replaces `tensor` by the tensor of rank `root`.
  virtual void Broadcast(const at::Tensor& tensor, int root) = 0;

  // Sends a tensor to another rank, which must receive the same number of elements of the same type. Tensors
  // from one rank to another arrive in the order in which they were sent. A send may be in flight until the
  // tensor is received. A rank cannot send to itself.
  virtual std::unique_ptr<Work> StartSend(const at::Tensor& tensor, int to) = 0;
  virtual std::unique_ptr<Work> StartReceive(const at::Tensor& tensor, int from) = 0;
  void Send(const at::Tensor& tensor, int to) { StartSend(tensor, to)->Wait(); }
  void Receive(const at::Tensor& tensor, int from) { StartReceive(tensor, from)->Wait(); }

  // Receives a tensor from any rank, and returns the rank that has sent it. Blocks. Throws TrainerError with
  // backend nccl, because NCCL does not support it.
  virtual int ReceiveFromAny(const at::Tensor& tensor) = 0;

  // Returns a communicator for the ranks that pass the same `group`, ordered by their ranks in this
  // communicator. It has the same timeout, and may be used concurrently with this communicator, which must
  // outlive it. Collective.
  virtual std::unique_ptr<Communicator> Split(int group) = 0;

  // Gathers a few bytes from every rank on every rank, in rank order. All ranks pass the same
  // number of bytes.
  virtual std::vector<std::string> AllGather(std::string_view mine) = 0;

  // Blocks until all ranks have called Barrier.
  virtual void Barrier() = 0;

  // Returns whether operations on GPU tensors may be recorded into a CUDA graph.
  virtual bool CanBeRecorded() const { return false; }
  // Calls `replay`, which launches a graph with recorded operations on the calling thread's current stream.
  // The whole graph counts as one collective operation.
  virtual void Replay(const std::function<void()>& replay) { replay(); }
};

}  // namespace scalelab::trainer
