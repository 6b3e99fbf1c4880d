// Corrects the intervals of predictions by the scores of earlier ones: split conformal prediction. Pure.
//
// The score of a prediction is the distance of the measured throughput from the predicted one, in half widths of the interval on that
// side, all as logarithms: at most 1 if the interval is right. A new interval is multiplied by the k-th smallest of n scores with
// k = ceil((n + 1) 0.9), which makes at least 90% of intervals right if the new study is like the earlier ones
// (Vovk, Gammerman and Shafer 2005; Lei et al., JASA 113, 2018). docs/users/predictions.md has an example.
#pragma once

#include <string>
#include <vector>

#include "db/predictions/predictions.h"

namespace scalelab::server {

inline constexpr double kNominalCoverage = 0.9;
inline constexpr size_t kLeastScores = 20;

// Returns the score by the interval as it was before its own correction. The row has a measured throughput.
double ConformalScore(const db::PredictionRow& row);

// Returns whether the scores of two predictions may be compared: both or neither used the model "replay".
bool SameKind(const db::PredictionRow& a, const db::PredictionRow& b);

// Returns the factor for half widths; 1 if there are fewer than `least` scores or it is not finite.
double ConformalFactor(std::vector<double> scores, size_t least = kLeastScores);

// Multiplies the half widths of the interval of `row` by the factor that the predictions of its kind among `scored` give, and notes
// the factor and their number in `row.models`.
void Correct(const std::vector<db::PredictionRow>& scored, db::PredictionRow& row);

// Returns whether an entry of PredictionRow::models is a note of Correct and not the prediction of a model.
bool IsNote(const std::string& model);
// Returns what the notes of Correct say, in a few words; empty without notes.
std::string CorrectionText(const db::PredictionRow& row);

}  // namespace scalelab::server
