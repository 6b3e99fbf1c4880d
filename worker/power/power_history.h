// The readings of an attempt's devices, about ten per second.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <mutex>
#include <vector>

namespace scalelab::worker {

// The quantities of a reading. All but the first are means over GPUs.
enum PowerQuantity { kJoules, kUtilisation, kWatts, kClockMhz, kThrottled, kPowerQuantities };

using PowerValues = std::array<double, kPowerQuantities>;  // NaN: unknown

constexpr PowerValues UnknownPower() {
  PowerValues values{};
  values.fill(std::numeric_limits<double>::quiet_NaN());
  return values;
}

struct PowerReading {
  double time = 0;                      // Unix time in seconds
  PowerValues values = UnknownPower();  // kJoules: since an arbitrary time before the first reading
  double memory_bytes = std::numeric_limits<double>::quiet_NaN();  // memory of the GPU that uses the most
};

// Thread-safe. Keeps a bounded number of readings. In a long attempt, old readings are thinned out.
class PowerHistory {
 public:
  // Ignores a reading that is not later than the one before.
  void Add(const PowerReading& reading);
  // Returns the joules from `begin` to `end`, and the integrals of the other quantities over this time. All are NaN if the
  // readings do not cover it; a quantity is NaN if it was unknown before `end`.
  PowerValues Between(double begin, double end) const;
  // Returns the time of the first reading; NaN if there is none.
  double begin() const;
  // Returns the largest memory_bytes so far; NaN if a reading had none.
  double peak_memory() const;

 private:
  // A reading that is kept.
  struct Reading {
    double time;
    PowerValues sums;  // integrals since the first reading
  };

  PowerValues At(double time) const;
  void Thin();

  mutable std::mutex mutex_;  // guards the other members
  std::vector<Reading> readings_;
  PowerValues last_ = {};
  double peak_memory_ = 0;
};

}  // namespace scalelab::worker
