// Rank 0's table of who has which tensor, and how ready tensors are put together. Pure: no communication.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "worker/trainer/strategies/horovod/messages.h"

namespace scalelab::trainer::horovod {

using Clock = std::chrono::steady_clock;

// A tensor that some ranks have submitted and others have not.
struct Waiting {
  std::string name;
  std::vector<int> missing;  // ranks
  double seconds = 0;        // since the first rank submitted it
};

class Negotiation {
 public:
  explicit Negotiation(int ranks) : ranks_(ranks) {}

  void Add(int rank, const Request& request, Clock::time_point now);

  // Takes out what every rank that is not closed has submitted, one response a tensor, in the order of first
  // submission. A tensor whose type or shape differs between ranks becomes an error that names both.
  std::vector<Response> TakeReady(const std::vector<bool>& closed);

  // What is left, in the order of first submission.
  std::vector<Waiting> StillWaiting(const std::vector<bool>& closed, Clock::time_point now) const;

 private:
  struct Entry {
    Request request;  // of `first_rank`
    int first_rank = 0;
    std::vector<bool> submitted;
    std::string error;
    Clock::time_point since;
  };

  int ranks_;
  std::vector<Entry> entries_;
};

// Puts responses of one tensor together, in order: each takes in following ones of its type while they stay
// within `threshold` bytes. One that does not fit is passed over and stays first of the rest, so that types
// in turn do not break fusion; it looks no further ahead than the threshold reaches, because what lies
// further back may be needed first. Errors stay alone.
std::vector<Response> Fuse(std::vector<Response> responses, int64_t threshold);

}  // namespace scalelab::trainer::horovod
