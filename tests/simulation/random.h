// The random numbers of a simulation, from one seed. The same on every machine, unlike the standard distributions.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace scalelab::simulation {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // splitmix64 (Steele, Lea, Flood).
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Returns a number from `low` to `high`, both included.
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
  }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  bool Chance(double probability) { return Unit() < probability; }
  absl::Duration Time(absl::Duration low, absl::Duration high) {
    return absl::Microseconds(Between(absl::ToInt64Microseconds(low), absl::ToInt64Microseconds(high)));
  }

 private:
  uint64_t state_;
};

}  // namespace scalelab::simulation
