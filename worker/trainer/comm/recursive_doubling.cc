#include "worker/trainer/comm/recursive_doubling.h"

#include <bit>

namespace scalelab::trainer {

std::vector<PairStep> RecursiveDoubling(int rank, int size) {
  using enum PairStep::Kind;
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(size))), beyond = size - power;
  // The first 2 * beyond ranks form pairs. Only the odd rank of each pair participates in the exchanges.
  const bool in_pair = rank < 2 * beyond;
  if (in_pair && rank % 2 == 0) return {{kSend, rank + 1}, {kReceiveResult, rank + 1}};
  std::vector<PairStep> steps;
  if (in_pair) steps.push_back({kReceive, rank - 1});
  const int number = in_pair ? rank / 2 : rank - beyond;
  for (int mask = 1; mask < power; mask *= 2) {
    const int other = number ^ mask;
    steps.push_back({kExchange, other < beyond ? 2 * other + 1 : other + beyond});
  }
  if (in_pair) steps.push_back({kSendResult, rank - 1});
  return steps;
}

}  // namespace scalelab::trainer
