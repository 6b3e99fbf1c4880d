// The schedule of an all-reduce for small tensors.
#pragma once

#include <vector>

namespace scalelab::trainer {

// One exchange of whole tensors with another rank.
struct PairStep {
  enum class Kind {
    kExchange,  // both ranks send, receive and reduce
    kSend,      // this rank sends, the peer reduces
    kReceive,   // the peer sends, this rank reduces
    kSendResult,
    kReceiveResult
  };
  Kind kind;
  int peer;
};

// Returns the steps of `rank` in order. The algorithm is recursive doubling (Thakur, Rabenseifner and Gropp,
// "Optimization of Collective Communication Operations in MPICH", 2005). After k exchanges a rank has the
// reduction over 2^k ranks. Ranks beyond the largest power of two first send their tensor to a neighbour, and
// receive the result from it at the end. If the operand of the lower rank always comes first, the result is
// equal on all ranks, bit for bit, even for reductions that depend on the order of operands.
std::vector<PairStep> RecursiveDoubling(int rank, int size);

}  // namespace scalelab::trainer
