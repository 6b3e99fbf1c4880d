// Compares the values of an axis, such as engines, at equal values of all other axes. The functions are pure.
//
// The effect of a pair is g = mean(log(first) - log(second)) over blocks, shown as e^g - 1. With k values
// there are k (k - 1) / 2 pairs. With separate 95% intervals, computed from the pair alone, 44% of studies of
// six equal engines with five repeats would show a difference. The intervals are therefore Tukey's: their critical value is q / sqrt(2), where q is the 95%
// quantile of the studentised range of k means (Tukey 1953; Hochberg and Tamhane, Multiple Comparison
// Procedures, 1987). With a probability of 95%, all intervals of a group are right.
//
// Two values are equivalent within d if two one-sided tests show that the effect is above -d and below d (TOST: Schuirmann,
// Journal of Pharmacokinetics and Biopharmaceutics 15, 1987). Those are tests of a pair at 5%, without Tukey's correction.
//
// Intervals of a study with adaptive_repeats are computed at a higher confidence (precision.h).
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "analysis/comparison/cell_groups.h"
#include "analysis/ratios.h"
#include "scalelab/v1/analysis.pb.h"

namespace scalelab::analysis {

// Critical values of intervals of all pairs of several values, in standard errors. Each is computed once, because that takes
// up to tens of milliseconds and most groups of a comparison need the same value. Thread-safe.
class TukeyCriticalValues {
 public:
  explicit TukeyCriticalValues(double confidence) : confidence_(confidence) {}
  double confidence() const { return confidence_; }
  // Returns the critical value of all pairs of `candidates` values.
  double Of(size_t candidates, double df);

 private:
  const double confidence_;
  absl::Mutex mutex_;
  std::map<std::pair<size_t, double>, double> known_ ABSL_GUARDED_BY(mutex_);
};

// Returns all pairs of the candidates, each with effect, interval and verdict. `equivalent` is a relative difference; 0: no
// test of equivalence. `critical` has the confidence of `ratios`. Many pairs are compared by several threads, which call
// `over` too. Returns CANCELLED soon after `over` returns true.
absl::StatusOr<std::vector<scalelab::v1::ComparedPair>> ComparePairs(const std::vector<Candidate>& candidates,
                                                                     double equivalent, CellRatios& ratios,
                                                                     TukeyCriticalValues& critical,
                                                                     const std::function<bool()>& over);

// Returns the larger p value of the two one-sided tests that the effect `g`, a logarithm with this standard error, is within
// +-log(1 + equivalent).
double EquivalenceP(double g, double error, double df, double equivalent);
// Returns the verdict of effect and p value of a pair. Equivalence needs a p value below 1 - `confidence`.
scalelab::v1::ComparedPair::Verdict VerdictOf(const scalelab::v1::ComparedPair& pair, double confidence);

// Compares the values of `axis`; an empty axis means "engine", and "study" compares the studies, see
// compare_studies.h. Except with "study", runs with different fingerprints are never compared.
//
// If there are several studies, each is one block, because machines change more from day to day than the
// noise within a day. Cells that several studies have in common make the other cells comparable. The noise of
// the comparison is the variation between these common cells. A note lists every parameter in which they differ
// between the studies, because the comparison combines their results.
//
// Returns INVALID_ARGUMENT if more than 100 values would be compared with each other, and CANCELLED soon after `over` returns
// true.
absl::StatusOr<scalelab::v1::CompareCellsResponse> CompareStudies(const std::vector<StudyRows>& studies,
                                                                  const std::string& axis, double equivalent,
                                                                  const std::function<bool()>& over);

}  // namespace scalelab::analysis
