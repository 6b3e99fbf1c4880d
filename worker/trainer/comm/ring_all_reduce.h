// All-reduce around a ring of ranks, using the sends and receives of any communicator.
//
// Uses the algorithm of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations" (2009), which Horovod uses too. A tensor is divided into one block for each rank. Each block
// travels around the ring once, and adds up the values of all ranks (reduce-scatter). Then it travels around
// the ring again, to copy the result to all ranks (all-gather). A rank sends 2 * (ranks - 1) / ranks times
// the size of the tensor.
//
// `ring` has any ranks of the communicator in any order. The order must be the same on all of them. All of
// these ranks, and no others, must call the function. `flat` is a one-dimensional tensor without gaps, of a
// type that communicators accept. It may have any number of elements, even fewer than there are ranks. It
// may be in host memory, or on a GPU if the communicator supports that. All functions throw the exceptions
// of the communicator.
#pragma once

#include <vector>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

using Ring = std::vector<int>;

// Returns a view of the block that place `place` of `places` has after RingReduceScatter. The sizes of blocks
// differ by at most one element. If there are fewer elements than places, some blocks are empty.
at::Tensor RingBlock(const at::Tensor& flat, size_t place, size_t places);
size_t PlaceIn(const Ring& ring, int rank);

// Replaces this rank's block of `flat` by the sum over the ring. The other blocks then hold partial sums.
void RingReduceScatter(Communicator& communicator, const at::Tensor& flat, const Ring& ring);
// Copies each rank's block of `flat` to all ranks of the ring.
void RingAllGather(Communicator& communicator, const at::Tensor& flat, const Ring& ring);

// Replaces `flat` by its sum or average over the ring. The result is equal on all ranks of the ring, bit for
// bit. `op` is kSum or kAverage, which divides the sum.
void RingAllReduce(Communicator& communicator, const at::Tensor& flat, ReduceOp op, const Ring& ring);

// Divides by `divisor` on the tensor's device.
void DivideInPlace(const at::Tensor& tensor, double divisor);

}  // namespace scalelab::trainer
