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
  std::vector<int> missing;  // ranks that have not submitted the tensor
  double seconds = 0;        // time since the first submission
};

class Negotiation {
 public:
  explicit Negotiation(int ranks) : ranks_(ranks) {}

  void Add(int rank, const Request& request, Clock::time_point now);

  // Removes and returns the tensors that all ranks have submitted, except for closed ranks, which need not
  // submit. Returns one response for each tensor, in the order of first submission. If the type or shape of a
  // tensor differs between ranks, the response is an error that contains both.
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

// Fuses responses of one tensor each. Each response, in order, includes later responses of the same type as
// long as the sum is at most `threshold` bytes. A response that does not fit is skipped, and starts the next
// fused response. Therefore alternating types do not prevent fusion. The search ends when the skipped
// responses exceed the threshold, because later tensors are needed later. Errors are not fused.
std::vector<Response> Fuse(std::vector<Response> responses, int64_t threshold);

}  // namespace scalelab::trainer::horovod
