// Who exchanges what with whom in an all-reduce of few bytes.
#pragma once

#include <vector>

namespace scalelab::trainer {

// One meeting with another rank. What two ranks bring together is always the whole tensor.
struct Meeting {
  enum class Kind {
    kExchange,  // both send what they have and reduce it with the other's
    kGive,      // this rank sends, the other one reduces
    kTake,      // the other way round
    kSendResult,
    kReceiveResult
  };
  Kind kind;
  int peer;
};

// The meetings of `rank` in their order: recursive doubling, as Thakur, Rabenseifner and Gropp describe it
// ("Optimization of Collective Communication Operations in MPICH", 2005). After k exchanges a rank has the
// reduction over 2^k of them. Ranks beyond the largest power of two give theirs to a neighbour first and get
// the result from it. Where the operand of the lower rank always comes first, results are the same bits on
// all ranks, also of operations that mind the order.
std::vector<Meeting> RecursiveDoubling(int rank, int size);

}  // namespace scalelab::trainer
