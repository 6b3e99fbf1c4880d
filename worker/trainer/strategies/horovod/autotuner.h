// Searches the cycle time and fusion threshold with the highest throughput. Pure: no clock, no communication.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

namespace scalelab::trainer::horovod {

// Hill climbing: each of the two settings has a ladder of values. Starting from the best pair so far, it
// tries the pairs one rung away until none is better. Horovod uses Bayesian optimisation; on ladders of this
// length hill climbing needs about a dozen samples and is easy to follow.
class Autotuner {
 public:
  struct Setting {
    int64_t fusion_bytes = 0;
    double cycle_seconds = 0;
  };

  // Starts at the rungs nearest to `start`.
  explicit Autotuner(const Setting& start);

  // Returns the setting to use now; after the search the best one.
  Setting current() const;
  bool done() const { return done_; }
  // Records the throughput of current() and moves on to the next setting.
  void Score(double bytes_per_second);

 private:
  using Rungs = std::pair<int, int>;  // positions on the fusion and cycle ladders

  Rungs at_, best_;
  std::map<Rungs, double> tried_;
  bool done_ = false;
};

}  // namespace scalelab::trainer::horovod
