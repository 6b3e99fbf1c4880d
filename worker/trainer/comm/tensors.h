// What communicators ask of tensors, and the arithmetic that they do themselves.
#pragma once

#include <cstddef>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

// Throw TrainerError for what no communicator takes: tensors with gaps, other types, other memory; `op` on a
// type that has no such reduction; blocks of the wrong size; a rank that does not exist.
void CheckTensor(const at::Tensor& tensor);
void CheckReduction(const at::Tensor& tensor, ReduceOp op);
void CheckBlocks(const at::Tensor& whole, const at::Tensor& block, int size);
void CheckPeer(int peer, const Communicator& communicator);

// result[i] = a[i] op b[i] for `count` elements; kAverage adds. `result` may be `a` or `b`. Plain loops:
// Torch's operators would start a second team of OpenMP threads on the communication thread.
using ReduceFunction = void (*)(void* result, const void* a, const void* b, size_t count);
ReduceFunction ReduceFunctionFor(at::ScalarType type, ReduceOp op);

// Multiplies by `factor`, on the calling thread.
void Scale(const at::Tensor& tensor, double factor);

}  // namespace scalelab::trainer
