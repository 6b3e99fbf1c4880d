// The seam to whatever carries data between the ranks of one run.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

enum class ReduceOp { kSum, kAverage, kMax };

// An operation that was started. It goes on to its end whether or not anybody waits.
class Work {
 public:
  virtual ~Work() = default;
  // Returns once the result is in place; throws TrainerError (communication) if the operation failed.
  virtual void Wait() = 0;
};

// All ranks of a run, numbered from 0.
//
// Every call but rank(), size() and name() is collective: all ranks make the same calls, with the same shapes
// and types, in the same order. The order is that of the calls, started operations included. One thread calls
// at a time, not always the same one. Tensors are dense blocks of memory (any permutation of strides, the
// same on all ranks), of type float, double or int64 (no averages of int64), and stay untouched by the caller
// until the operation is over. Results are the same bits on all ranks. Failures throw TrainerError of kind
// communication; the communicator cannot be used after one.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view name() const = 0;

  // Replaces `tensor` by the sum, average or maximum over all ranks, element by element, while the caller
  // goes on.
  virtual std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) = 0;
  void AllReduce(const at::Tensor& tensor, ReduceOp op) { StartAllReduce(tensor, op)->Wait(); }

  // Replaces `tensor` by that of rank `root`.
  virtual void Broadcast(const at::Tensor& tensor, int root) = 0;

  // Few bytes from every rank to every rank, as many from each, in the order of ranks.
  virtual std::vector<std::string> AllGather(std::string_view mine) = 0;

  // Returns when all ranks have called it.
  virtual void Barrier() = 0;
};

}  // namespace scalelab::trainer
