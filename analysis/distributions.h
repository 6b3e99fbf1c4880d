// Distribution functions and quantiles. They use Boost.Math where it has the distribution.
#pragma once

#include <cstddef>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace scalelab::analysis {

// Returns P(T <= t) for Student's t distribution with `df` degrees of freedom, which need not be a whole number.
double StudentCdf(double t, double df);
// Returns the t with StudentCdf(t) = p, for p in (0, 1).
double StudentQuantile(double p, double df);
// Returns the quantile p of the normal distribution.
double NormalQuantile(double p);
// Returns P(F > f) for Fisher's F distribution.
double FisherTail(double f, double numerator_df, double denominator_df);

// Returns P(Q <= q) for the studentised range of `groups` means with `df` degrees of freedom: the distribution of
// (largest - smallest) / s of `groups` standard normal numbers, where s^2 is an independent chi^2(df) / df.
double StudentizedRangeCdf(double q, int groups, double df);
// Returns the q with StudentizedRangeCdf(q) = p. Takes tens of milliseconds.
double StudentizedRangeQuantile(double p, int groups, double df);

// Two-sided critical values for one confidence level. Each value is computed once, because a curve uses the
// same few values thousands of times. Thread-safe.
class CriticalValues {
 public:
  explicit CriticalValues(double confidence) : confidence_(confidence) {}
  double confidence() const { return confidence_; }
  // Returns the critical value of Student's t distribution with `df` degrees of freedom.
  double T(double df) const;
  // Of the normal distribution.
  double Z() const { return NormalQuantile(0.5 + confidence_ / 2); }

 private:
  const double confidence_;
  mutable absl::Mutex mutex_;
  mutable std::map<double, double> t_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace scalelab::analysis
