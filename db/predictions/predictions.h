// The ledger of predictions. All functions return the errors of the Store.
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
  int64_t id = 0;  // chosen by the store
  int64_t study_id = 0, cell_id = 0;
  int64_t source_id = 0;                 // the study whose results were used
  std::string study_name;                // a copy, because the study may be deleted
  std::string owner;                     // owner of the study of the cell
  bool is_private = false;               // whether the study of the cell or the source is private
  std::string key;                       // JSON: the values of the axes except ranks
  std::string fingerprint;               // fingerprint of the results that were used
  std::map<std::string, double> models;  // the prediction of each model, by name
  int ranks = 0, largest = 0;            // largest: the largest world size with results
  double predicted = 0, low = 0, high = 0;
  State state = State::kPending;
  std::string reason;  // why the state is kUnresolved
  std::optional<double> measured, measured_low, measured_high;
  Micros created = 0, scored = 0;
};
constexpr PredictionRow::State LastOf(PredictionRow::State) { return PredictionRow::State::kUnresolved; }

// Stores predictions for cells of one study in one transaction. Leaves out a prediction if its cell was
// deleted or has a run that has begun. Does not replace a stored prediction for the same cell and source.
// Returns the stored row for each of `rows`, in their order; nothing for a prediction that was left out.
absl::StatusOr<std::vector<std::optional<PredictionRow>>> AddPredictions(
    Store& store, const std::vector<PredictionRow>& rows);

// Returns at most `limit` predictions that have no score and whose cells have no run that may still
// give a result.
absl::StatusOr<std::vector<PredictionRow>> ListPredictionsToScore(Store& store, int limit);
// Stores state, reason, measured values and time of a prediction. Does nothing if it has a score.
absl::Status SetPredictionScore(Store& store, const PredictionRow& row);

struct PredictionFilter {
  int64_t study_id = 0;  // 0: all studies
  Viewer viewer;
};
// Returns at most `limit` predictions with ids below `before`, newest first. If `before` is 0, starts
// with the newest.
absl::StatusOr<std::vector<PredictionRow>> ListPredictions(Store& store, const PredictionFilter& filter,
                                                           int64_t before, int limit);

// Returns the newest predictions that have a score and that everybody may see, at most `limit`.
absl::StatusOr<std::vector<PredictionRow>> ListScoredPredictions(Store& store, int limit);

// A metric of the first rank about its buckets of gradients, "bucket/...".
struct BucketMetricRow {
  int64_t attempt_id = 0;
  std::string name;
  double value = 0;
};
// Returns these metrics of the first `repeats` repeats of a study's cells, ordered by attempt.
absl::StatusOr<std::vector<BucketMetricRow>> ListBucketMetrics(Store& store, int64_t study_id, int repeats);

struct PredictionScores {
  int64_t predictions = 0, covered = 0;
  std::vector<double> errors;  // predicted / measured - 1 of each prediction with a score
};
absl::StatusOr<PredictionScores> ReadPredictionScores(Store& store, const PredictionFilter& filter);

}  // namespace scalelab::db
