// All-reduce around a ring of ranks, using the sends and receives of any communicator.
//
// The algorithm is that of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations" (2009), which Horovod uses. A tensor is cut into one block per rank. Each block goes once
// around the ring and sums the values of all ranks (reduce-scatter), then once more to bring the result to
// all ranks (all-gather). A rank sends 2 * (ranks - 1) / ranks times the size of the tensor.
//
// `ring` holds any ranks of the communicator in any order, the same on all of them. Only these ranks call,
// all at the same time. `flat` is a one-dimensional tensor without gaps, of a type that communicators take.
// It may have any number of elements, also fewer than ranks, and may be in host memory or on a GPU if the
// communicator supports that. All functions throw what the communicator throws.
#pragma once

#include <vector>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

using Ring = std::vector<int>;

// Returns a view of the block that place `place` of `places` owns after RingReduceScatter. Block sizes differ
// by at most one element; a block is empty if there are fewer elements than places.
at::Tensor RingBlock(const at::Tensor& flat, size_t place, size_t places);
size_t PlaceIn(const Ring& ring, int rank);

// Replaces this rank's block of `flat` by the sum over the ring. The other blocks then hold partial sums.
void RingReduceScatter(Communicator& communicator, const at::Tensor& flat, const Ring& ring);
// Copies each rank's block of `flat` to all ranks of the ring.
void RingAllGather(Communicator& communicator, const at::Tensor& flat, const Ring& ring);

// Replaces `flat` by its sum or average over the ring; the result is the same on all its ranks, bit for bit.
// `op` is kSum or kAverage, which divides the sum.
void RingAllReduce(Communicator& communicator, const at::Tensor& flat, ReduceOp op, const Ring& ring);

// Divides by `divisor` on the tensor's device.
void DivideInPlace(const at::Tensor& tensor, double divisor);

}  // namespace scalelab::trainer
