// The seam to whatever carries data between the ranks of one run.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// Element by element. kAverage is for floating point, kBitAnd for int64 only. Sums of float16 and bfloat16
// are rounded after each addition, and a float16 sum beyond 65504 is infinite, before the average is taken
// too (nccl divides first).
enum class ReduceOp { kSum, kAverage, kMax, kBitAnd };

// An operation that was started. It goes on to its end whether or not anybody waits.
class Work {
 public:
  virtual ~Work() = default;
  // Returns once the result is in place; throws TrainerError (communication) if the operation failed. The
  // result of a tensor on a GPU is in place for what the calling thread's current stream is given from then
  // on; the host may be ahead of it, and a failure may be thrown by a later call.
  virtual void Wait() = 0;
};

// All ranks of a run, numbered from 0.
//
// Collective calls: all ranks make the same calls, with the same shapes and types, in the same order. The
// order is that of the calls, started operations included. Send and receive stand outside of that order. One
// thread calls at a time, not always the same one. Tensors are dense blocks of memory (any permutation of
// strides, the same on all ranks), of type float, float16, bfloat16, double or int64, and stay untouched by
// the caller until the operation is over. Those on a GPU are taken as the current stream of the calling
// thread leaves them. Results of a reduction are the same bits on all ranks.
//
// An operation that is not over after the communicator's time limit, counted from its start on this rank,
// fails; so does every operation as soon as a rank is known to be gone. Failures throw TrainerError of kind
// communication whose message names the rank that did not take part and the last operation that it finished;
// the communicator cannot be used after one.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view name() const = 0;

  // Replaces `tensor` by its reduction over all ranks, while the caller goes on; AllReduce returns when it is
  // done. All ranks make the same of the two calls.
  virtual std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) = 0;
  virtual void AllReduce(const at::Tensor& tensor, ReduceOp op) { StartAllReduce(tensor, op)->Wait(); }

  // `input` is size() blocks as large as `output`, one after another in memory: `output` becomes the
  // reduction over all ranks of block rank(). `input` keeps its values.
  virtual std::unique_ptr<Work> StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                                   ReduceOp op) = 0;
  void ReduceScatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
    StartReduceScatter(output, input, op)->Wait();
  }

  // `output` becomes the `input` of all ranks, in the order of ranks, one after another in memory. `input`
  // may be block rank() of `output` itself.
  virtual std::unique_ptr<Work> StartAllGather(const at::Tensor& output, const at::Tensor& input) = 0;
  void AllGatherInto(const at::Tensor& output, const at::Tensor& input) {
    StartAllGather(output, input)->Wait();
  }

  // Replaces `tensor` by that of rank `root`.
  virtual void Broadcast(const at::Tensor& tensor, int root) = 0;

  // One tensor from this rank to another: that one must receive it, with the same number of elements and
  // type. Tensors from one rank to another arrive in the order in which they were sent. A send may last until
  // it is received. No rank sends to itself.
  virtual std::unique_ptr<Work> StartSend(const at::Tensor& tensor, int to) = 0;
  virtual std::unique_ptr<Work> StartReceive(const at::Tensor& tensor, int from) = 0;
  void Send(const at::Tensor& tensor, int to) { StartSend(tensor, to)->Wait(); }
  void Receive(const at::Tensor& tensor, int from) { StartReceive(tensor, from)->Wait(); }

  // Few bytes from every rank to every rank, as many from each, in the order of ranks.
  virtual std::vector<std::string> AllGather(std::string_view mine) = 0;

  // Returns when all ranks have called it.
  virtual void Barrier() = 0;

  // Whether operations on tensors of a GPU may be recorded into a CUDA graph.
  virtual bool CanBeRecorded() const { return false; }
  // Runs `replay`, which starts a graph with recorded operations on the calling thread's current stream. All
  // of it counts as one collective operation.
  virtual void Replay(const std::function<void()>& replay) { replay(); }
};

}  // namespace scalelab::trainer
