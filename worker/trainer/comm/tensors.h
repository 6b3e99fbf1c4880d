// Checks of arguments and arithmetic that all communicators use.
#pragma once

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/kernels/reduce_kernels.h"

namespace scalelab::trainer {

// Throw TrainerError for arguments that no communicator accepts: tensors with gaps or of other types, an `op`
// that the type does not support, blocks of the wrong size, a rank that does not exist.
void CheckTensor(const at::Tensor& tensor);
void CheckReduction(const at::Tensor& tensor, ReduceOp op);
void CheckBlocks(const at::Tensor& whole, const at::Tensor& block, int size);
void CheckUnequalBlocks(const at::Tensor& whole, const at::Tensor& block, const std::vector<int64_t>& counts,
                        const Communicator& communicator);
void CheckPeer(int peer, const Communicator& communicator);
void CheckReceiveFromAny(const at::Tensor& tensor, const Communicator& communicator);

// Returns the total number of elements of the ranks before `rank`, in an all-gather of blocks
// of different sizes.
int64_t FirstElementOf(int rank, const std::vector<int64_t>& counts);

// Returns the function that reduces elements of `type` by `op`. For kAverage, returns the function that adds.
ReduceFunction ReduceFunctionFor(at::ScalarType type, ReduceOp op);

// Divides by `divisor` on the calling thread.
void Divide(const at::Tensor& tensor, double divisor);

}  // namespace scalelab::trainer
