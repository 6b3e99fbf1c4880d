// The ledger of predictions: makes, stores and scores predictions.
#pragma once

#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "db/store.h"
#include "scalelab/v1/prediction.pb.h"
#include "server/prediction/predict.h"
#include "server/time/steady_mutex.h"
#include "server/time/stop_signal.h"

namespace scalelab::server {

// Reads a study with its cells and results.
absl::StatusOr<StudyData> ReadStudyData(db::Store& store, db::StudyRow study);

// Predicts cells as PredictCells does and, unless `dry_run`, stores the predictions.
// See also PredictionService.CreatePredictions.
absl::StatusOr<std::vector<v1::Prediction>> MakePredictions(db::Store& store, const StudyData& source,
                                                            const StudyData& target,
                                                            const std::vector<int>& ranks, bool dry_run,
                                                            db::Micros now,
                                                            const std::optional<RingCost>& network = {});
v1::Prediction ToPrediction(const db::PredictionRow& row);
v1::PredictionSummary Summarise(const db::PredictionScores& scores);

// Scores the predictions whose cells have run. Returns their number.
absl::StatusOr<int> ScorePredictions(db::Store& store, db::Micros now);

// A thread that scores predictions from the constructor to Stop.
class Scorer {
 public:
  // `store` must outlive this object. The thread calls ScorePredictions once in a `period`.
  explicit Scorer(db::Store& store, absl::Duration period = absl::Seconds(5));
  // Calls Stop with an infinite grace.
  ~Scorer();
  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;

  // Ends the thread. Returns false if it still reads the database after `grace`: this object and the store must then stay alive
  // until the process ends.
  bool Stop(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  db::Store& store_;
  const absl::Duration period_;
  SteadyMutex mutex_;
  StopSignal stop_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace scalelab::server
