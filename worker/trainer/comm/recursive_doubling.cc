#include "worker/trainer/comm/recursive_doubling.h"

#include <bit>

namespace scalelab::trainer {

std::vector<Meeting> RecursiveDoubling(int rank, int size) {
  using enum Meeting::Kind;
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(size))), beyond = size - power;
  // Of the first 2 * beyond ranks the odd ones stand for their pair.
  const bool in_pair = rank < 2 * beyond;
  if (in_pair && rank % 2 == 0) return {{kGive, rank + 1}, {kReceiveResult, rank + 1}};
  std::vector<Meeting> meetings;
  if (in_pair) meetings.push_back({kTake, rank - 1});
  const int number = in_pair ? rank / 2 : rank - beyond;
  for (int mask = 1; mask < power; mask *= 2) {
    const int other = number ^ mask;
    meetings.push_back({kExchange, other < beyond ? 2 * other + 1 : other + beyond});
  }
  if (in_pair) meetings.push_back({kSendResult, rank - 1});
  return meetings;
}

}  // namespace scalelab::trainer
