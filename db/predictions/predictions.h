// The ledger of predictions. Functions on a Store, with its errors.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "db/store.h"

namespace scalelab::db {

// The prediction of the throughput of one cell.
struct PredictionRow {
  enum class State : int { kPending = 1, kScored = 2, kUnresolved = 3 };
  int64_t id = 0;  // the store chooses it
  int64_t study_id = 0, cell_id = 0;
  int64_t source_id = 0;                 // the study whose results were used
  std::string study_name;                // a copy, because the study may be deleted
  std::string owner;                     // of the study of the cell
  bool is_private = false;               // one of the two studies is private
  std::string key;                       // JSON: the values of the axes except ranks
  std::string fingerprint;               // of the results that were used
  std::map<std::string, double> models;  // the prediction of each
  int ranks = 0, largest = 0;            // largest: of the world sizes that were used
  double predicted = 0, low = 0, high = 0;
  State state = State::kPending;
  std::string reason;  // why it is kUnresolved
  std::optional<double> measured, measured_low, measured_high;
  Micros created = 0, scored = 0;
};
constexpr PredictionRow::State LastOf(PredictionRow::State) { return PredictionRow::State::kUnresolved; }

// Stores predictions of cells of one study. Leaves out those whose cell has a run that has begun, or is gone; this is checked
// in the same transaction. If a prediction of this cell from this source exists, it stays. Returns the stored row for each of
// `rows`, in their order; nothing for one that was left out.
absl::StatusOr<std::vector<std::optional<PredictionRow>>> AddPredictions(
    Store& store, const std::vector<PredictionRow>& rows);

// Returns the predictions without a score whose cells have no run that may still give a result, at most `limit`.
absl::StatusOr<std::vector<PredictionRow>> ListPredictionsToScore(Store& store, int limit);
// Stores state, reason, measured values and time of a prediction that has no score yet.
absl::Status SetPredictionScore(Store& store, const PredictionRow& row);

struct PredictionFilter {
  int64_t study_id = 0;  // 0: all studies
  Viewer viewer;
};
// Returns at most `limit` predictions with ids below `before` (0: from the newest), newest first.
absl::StatusOr<std::vector<PredictionRow>> ListPredictions(Store& store, const PredictionFilter& filter,
                                                           int64_t before, int limit);

// Returns the newest predictions with a score that everybody may see, at most `limit`.
absl::StatusOr<std::vector<PredictionRow>> ListScoredPredictions(Store& store, int limit);

// A metric of the first rank about its buckets of gradients, "bucket/...".
struct BucketMetricRow {
  int64_t attempt_id = 0;
  std::string name;
  double value = 0;
};
// Returns those of the first `repeats` repeats of a study's cells, by attempt.
absl::StatusOr<std::vector<BucketMetricRow>> ListBucketMetrics(Store& store, int64_t study_id, int repeats);

struct PredictionScores {
  int64_t predictions = 0, covered = 0;
  std::vector<double> errors;  // predicted / measured - 1, of those with a score
};
absl::StatusOr<PredictionScores> ReadPredictionScores(Store& store, const PredictionFilter& filter);

}  // namespace scalelab::db
