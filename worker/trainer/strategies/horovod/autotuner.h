// Search for the cycle time and the fusion threshold with the highest throughput. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

namespace scalelab::trainer::horovod {

// Hill climbing: both settings have a ladder of values; from the best pair so far the pairs one rung away are
// tried, until none of them is better. Horovod itself uses Bayesian optimisation; on ladders of this length
// climbing needs a dozen samples and can be followed by hand.
class Autotuner {
 public:
  struct Setting {
    int64_t fusion_bytes = 0;
    double cycle_seconds = 0;
  };

  // Starts on the rungs nearest to `start`.
  explicit Autotuner(const Setting& start);

  // What to use now; the best one when done.
  Setting current() const;
  bool done() const { return done_; }
  // The throughput that current() had; moves on to the next setting.
  void Score(double bytes_per_second);

 private:
  using Rungs = std::pair<int, int>;  // of the fusion and of the cycle ladder

  Rungs at_, best_;
  std::map<Rungs, double> tried_;
  bool done_ = false;
};

}  // namespace scalelab::trainer::horovod
