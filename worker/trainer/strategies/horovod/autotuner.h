// Searches for the cycle time and fusion threshold with the highest throughput. Pure: no
// clock, no communication.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

namespace scalelab::trainer::horovod {

// Uses hill climbing. Each of the two settings has a list of values. The search tries the neighbours of the
// best pair so far, until none of them is better. Horovod uses Bayesian optimisation. For lists of this
// length, hill climbing needs about a dozen samples, and is simpler.
class Autotuner {
 public:
  struct Setting {
    int64_t fusion_bytes = 0;
    double cycle_seconds = 0;
  };

  // Starts at the values nearest to `start`.
  explicit Autotuner(const Setting& start);

  // Returns the setting to use now. After the search, this is the best setting.
  Setting current() const;
  bool done() const { return done_; }
  // Records the throughput of current() and chooses the next setting.
  void Score(double bytes_per_second);

 private:
  using Rungs = std::pair<int, int>;  // indices into the lists of fusion thresholds and cycle times

  Rungs at_, best_;
  std::map<Rungs, double> tried_;
  bool done_ = false;
};

}  // namespace scalelab::trainer::horovod
