// Lossy forms of gradients, and the average of gradients in such a form over the ranks.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

// The gradient of one parameter. Both tensors are matrices of contiguous rows.
struct CompressedPart {
  int parameter = 0;
  at::Tensor matrix;  // the gradient plus the error of the step before; receives the mean over the ranks
  at::Tensor error;   // receives what this rank leaves out
};

class Compressor {
 public:
  // An exchange that has started.
  class Exchange {
   public:
    virtual ~Exchange() = default;
    // Sets `matrix` and `error` of all parts. Returns the bytes that were passed to the communicator. Collective, in the
    // order in which the exchanges were started.
    virtual int64_t Finish() = 0;
  };

  virtual ~Compressor() = default;
  // Returns whether the compressed form of a matrix is smaller than the matrix.
  virtual bool Takes(int64_t rows, int64_t columns) const = 0;
  // Collective. The parts are the same parameters on all ranks.
  virtual std::unique_ptr<Exchange> Start(const std::vector<CompressedPart>& parts) = 0;

  // Returns the tensors that it keeps from step to step by parameter; they are equal on all ranks. Writing into the map
  // restores a state.
  virtual std::map<int, at::Tensor>* state() { return nullptr; }
};

// PowerSGD (Vogels et al. 2019, arXiv 1905.13727, algorithm 1): M is about P Q', where P and Q have `rank` columns, after one
// step of subspace iteration that starts from the Q of the step before.
std::unique_ptr<Compressor> MakePowerSgd(Communicator& communicator, int64_t rank);

// The largest elements, a share of `ratio` of each matrix (Lin et al. 2018, arXiv 1712.01887, section 3, without its
// momentum correction).
std::unique_ptr<Compressor> MakeTopK(Communicator& communicator, double ratio);

// One bit for each element, and for each row the mean of its elements with either sign (Seide et al. 2014, 1-bit stochastic
// gradient descent, section 3.2).
std::unique_ptr<Compressor> MakeOneBit(Communicator& communicator);

}  // namespace scalelab::trainer
