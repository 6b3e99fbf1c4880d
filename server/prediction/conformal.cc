#include "server/prediction/conformal.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace scalelab::server {
namespace {

// Keys of the correction in PredictionRow::models, which is stored as a map of names to numbers.
constexpr char kFactor[] = "interval factor", kScores[] = "interval scores";

double NoteOf(const db::PredictionRow& row, const char* name, double otherwise) {
  const auto found = row.models.find(name);
  return found == row.models.end() ? otherwise : found->second;
}

}  // namespace

double ConformalScore(const db::PredictionRow& row) {
  const double error = std::log(row.measured.value_or(row.predicted) / row.predicted);
  if (error == 0) return 0;
  const double half = error > 0 ? std::log(row.high / row.predicted) : std::log(row.predicted / row.low);
  return half > 0 ? std::abs(error) / half * NoteOf(row, kFactor, 1) : HUGE_VAL;
}

bool SameKind(const db::PredictionRow& a, const db::PredictionRow& b) {
  return a.models.contains("replay") == b.models.contains("replay");
}

double ConformalFactor(std::vector<double> scores, size_t least) {
  if (scores.empty() || scores.size() < least) return 1;
  std::ranges::sort(scores);
  const auto k = static_cast<size_t>(std::ceil(static_cast<double>(scores.size() + 1) * kNominalCoverage));
  const double factor = scores[std::min(k, scores.size()) - 1];
  return std::isfinite(factor) ? factor : 1;
}

void Correct(const std::vector<db::PredictionRow>& scored, db::PredictionRow& row) {
  std::vector<double> scores;
  for (const db::PredictionRow& past : scored) {
    if (SameKind(past, row)) scores.push_back(ConformalScore(past));
  }
  const double factor = ConformalFactor(scores);
  row.low = row.predicted * std::pow(row.low / row.predicted, factor);
  row.high = row.predicted * std::pow(row.high / row.predicted, factor);
  row.models[kScores] = static_cast<double>(scores.size());
  row.models[kFactor] = factor;
}

bool IsNote(const std::string& model) { return model == kFactor || model == kScores; }

std::string CorrectionText(const db::PredictionRow& row) {
  if (!row.models.contains(kScores)) return "";
  const double scores = NoteOf(row, kScores, 0);
  if (scores < kLeastScores)
    return absl::StrCat("interval not corrected: ", scores, " of ", kLeastScores, " scores");
  return absl::StrFormat("interval x %.2f, from %d scores", NoteOf(row, kFactor, 1),
                         static_cast<int>(scores));
}

}  // namespace scalelab::server
