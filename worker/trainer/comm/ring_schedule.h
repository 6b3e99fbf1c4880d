// The order in which blocks travel around a ring of ranks. All ring algorithms in this folder use it.
#pragma once

namespace scalelab::trainer {

// A ring algorithm divides a tensor into one block for each place of the ring. In each hop, every place sends
// one block to the next place, and receives one block from the previous place. The functions below call
// `exchange(outgoing, incoming)` with the numbers of these two blocks, once for each of the places - 1 hops.
//
// The callers differ in how a block is sent and where blocks begin:
//   - RingReduceScatter and RingAllGather (ring_all_reduce.h) use any communicator's sends and receives;
//   - MpiCommunicator's blocking all-reduce calls MPI directly, without an Operation for each message;
//   - GlooCommunicator's reduce-scatter keeps its input and sums in a buffer of one block.

// Makes the hops of a reduce-scatter. `exchange` must add the received values to block `incoming`. Block k
// starts at place k + 1, travels around the ring and is complete when it arrives at place k. After the last
// hop, block `place` is complete on each place.
template <typename Exchange>
void ForEachReduceScatterHop(int place, int places, const Exchange& exchange) {
  for (int hop = 1; hop < places; ++hop) {
    exchange((place + places - hop) % places, (place + places - hop - 1) % places);
  }
}

// Makes the hops of an all-gather. `exchange` must overwrite block `incoming` with the received values. Block
// `place` must be complete at the start. After the last hop, all blocks are complete.
template <typename Exchange>
void ForEachAllGatherHop(int place, int places, const Exchange& exchange) {
  for (int hop = 1; hop < places; ++hop) {
    exchange((place + places - hop + 1) % places, (place + places - hop) % places);
  }
}

}  // namespace scalelab::trainer
