// All-reduce around a ring of ranks, made of a communicator's sends and receives: any of them will do.
//
// As Patarasuk and Yuan describe it ("Bandwidth optimal all-reduce algorithms for clusters of workstations",
// 2009) and Horovod has made it known: a tensor is cut into as many blocks as there are ranks. Each goes once
// around the ring and gathers the values of all (reduce-scatter), then once more and brings the result to all
// (all-gather). A rank sends 2 * (ranks - 1) / ranks times the tensor, whatever the number of ranks.
//
// `ring` is any ranks of the communicator in any order, the same on all of them, this rank among them; only
// they call, at the same time. `flat` has one dimension without gaps, any number of elements, also fewer than
// ranks, and of the types that communicators take. It lies in host memory or on a GPU, as the communicator
// can take it. Throw what the communicator throws.
#pragma once

#include <vector>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

using Ring = std::vector<int>;

// What the rank in place `place` of a ring of `places` ranks ends with. Sizes differ by at most one element;
// empty where there are fewer elements than ranks. A view.
at::Tensor RingBlock(const at::Tensor& flat, size_t place, size_t places);
size_t PlaceIn(const Ring& ring, int rank);

// This rank's block of `flat` becomes the sum over the ring; the other blocks are left half done.
void RingReduceScatter(Communicator& communicator, const at::Tensor& flat, const Ring& ring);
// Each rank's block of `flat` is brought to all.
void RingAllGather(Communicator& communicator, const at::Tensor& flat, const Ring& ring);

// Replaces `flat` by its sum or average over the ring, the same bits on all of its ranks. `op` is kSum or
// kAverage, which adds first and divides then.
void RingAllReduce(Communicator& communicator, const at::Tensor& flat, ReduceOp op, const Ring& ring);

// Multiplies by `factor` where the tensor lies.
void ScaleInPlace(const at::Tensor& tensor, double factor);

}  // namespace scalelab::trainer
