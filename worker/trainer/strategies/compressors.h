// Lossy compression of gradients. The ranks average gradients in compressed form.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

// The gradient of one parameter. Both tensors are matrices of contiguous rows.
struct CompressedPart {
  int parameter = 0;
  at::Tensor matrix;  // the gradient plus the error of the previous step; receives the mean over the ranks
  at::Tensor error;   // receives the part of `matrix` that this rank does not send
};

class Compressor {
 public:
  // An exchange that has started.
  class Exchange {
   public:
    virtual ~Exchange() = default;
    // Completes the exchange: sets `matrix` and `error` of all parts. Returns the number of bytes that
    // were passed to the communicator. Collective; exchanges must be finished in the order in which
    // they were started.
    virtual int64_t Finish() = 0;
  };

  virtual ~Compressor() = default;
  // Returns whether the compressed form of a matrix is smaller than the matrix.
  virtual bool Takes(int64_t rows, int64_t columns) const = 0;
  // Starts to average `parts`, which must be the same parameters on all ranks. Collective.
  virtual std::unique_ptr<Exchange> Start(const std::vector<CompressedPart>& parts) = 0;

  // Returns the tensors that the compressor keeps from step to step, by parameter. They are equal on all
  // ranks. Writing to the map restores a state. Returns null if there is no state.
  virtual std::map<int, at::Tensor>* state() { return nullptr; }
};

// Returns PowerSGD (Vogels et al. 2019, arXiv 1905.13727, algorithm 1). It approximates a matrix M by
// P Q', where P and Q have `rank` columns, with one step of subspace iteration that starts from Q of
// the previous step.
std::unique_ptr<Compressor> MakePowerSgd(Communicator& communicator, int64_t rank);

// Returns top-k compression: each rank sends the largest elements of each matrix, which are a share `ratio`
// of its elements (Lin et al. 2018, arXiv 1712.01887, section 3, without momentum correction).
std::unique_ptr<Compressor> MakeTopK(Communicator& communicator, double ratio);

// Returns 1-bit compression: each rank sends the signs of the elements, and the means of the positive and of
// the negative elements of each row (Seide et al. 2014, 1-bit stochastic gradient descent, section 3.2).
std::unique_ptr<Compressor> MakeOneBit(Communicator& communicator);

}  // namespace scalelab::trainer
