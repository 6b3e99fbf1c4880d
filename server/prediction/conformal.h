// Corrects the intervals of predictions by the scores of earlier predictions: split conformal
// prediction. Pure functions.
//
// The score of a prediction is |log(measured / predicted)| divided by the half width of the interval on the
// side of the measured throughput, which is log(high / predicted) or log(predicted / low). The score is at
// most 1 if the interval contains the measured throughput. The half widths of a new interval are multiplied
// by the k-th smallest of n scores, with k = ceil((n + 1) 0.9). At least 90% of such intervals contain the
// measured throughput if the new study resembles the earlier ones (Vovk, Gammerman and Shafer 2005; Lei et
// al., JASA 113, 2018). docs/users/predictions.md has an example.
#pragma once

#include <string>
#include <vector>

#include "db/predictions/predictions.h"

namespace scalelab::server {

inline constexpr double kNominalCoverage = 0.9;
inline constexpr size_t kLeastScores = 20;

// Returns the score of the row's interval without its correction. The row must have a measured throughput.
double ConformalScore(const db::PredictionRow& row);

// Returns whether the scores of two predictions may be compared: both or neither used the model "replay".
bool SameKind(const db::PredictionRow& a, const db::PredictionRow& b);

// Returns the factor for half widths; 1 if there are fewer than `least` scores or the factor is not finite.
double ConformalFactor(std::vector<double> scores, size_t least = kLeastScores);

// Multiplies the half widths of the interval of `row` by the factor of those predictions in `scored` that are
// of the same kind as `row`. Stores the factor and the number of these predictions in `row.models`.
void Correct(const std::vector<db::PredictionRow>& scored, db::PredictionRow& row);

// Returns whether a key of PredictionRow::models is one that Correct stores, and not the name of a model.
bool IsNote(const std::string& model);
// Describes the correction of the row's interval in a few words. Returns "" if Correct was not called
// for the row.
std::string CorrectionText(const db::PredictionRow& row);

}  // namespace scalelab::server
