// Rank 0's table of submitted tensors, and the fusion of ready tensors. Pure: no clock, no communication.
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
  std::vector<int> missing;  // ranks that have not submitted it
  double seconds = 0;        // since the first submission
};

class Negotiation {
 public:
  explicit Negotiation(int ranks) : ranks_(ranks) {}

  void Add(int rank, const Request& request, Clock::time_point now);

  // Removes and returns the tensors that every rank has submitted or, if closed, need not submit. Returns one
  // response per tensor, in the order of first submission. If the type or shape of a tensor differs between
  // ranks, the response is an error that names both.
  std::vector<Response> TakeReady(const std::vector<bool>& closed);

  // Returns the remaining tensors, in the order of first submission.
  std::vector<Waiting> StillWaiting(const std::vector<bool>& closed, Clock::time_point now) const;

 private:
  struct Entry {
    Request request;  // as submitted by `first_rank`
    int first_rank = 0;
    std::vector<bool> submitted;
    std::string error;
    Clock::time_point since;
  };

  int ranks_;
  std::vector<Entry> entries_;
};

// Fuses responses of one tensor each, in order: each response takes in later responses of its type as long as
// the sum stays within `threshold` bytes. A response that does not fit is skipped and comes first afterwards,
// so that alternating types do not break fusion. The search ends when the skipped responses exceed the
// threshold, because tensors further back are needed later. Errors are not fused.
std::vector<Response> Fuse(std::vector<Response> responses, int64_t threshold);

}  // namespace scalelab::trainer::horovod
