// The results of a study, by hardware and cell.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "analysis/concurrency.h"
#include "analysis/outliers.h"
#include "analysis/ratios.h"
#include "db/records.h"

namespace scalelab::analysis {

// The rows of one cell with one fingerprint.
struct Point {
  const db::CellRow* cell = nullptr;
  size_t index = 0;  // index of the cell in the study
  size_t place = 0;  // index among the points of its hardware
  int succeeded = 0, failed = 0, out_of_memory = 0, pending = 0, cancelled = 0;
  int retried = 0;  // number of repeats that succeeded after failed attempts
  int noisy = 0;    // number of repeats that succeeded although other load disturbed them
  Sample throughput;
  std::vector<double> epoch_seconds, comm_share, peak_memory, accuracy, train_loss, time_to_accuracy;
  std::vector<double> concurrent;  // mean number of concurrent attempts of each repeat that succeeded
  int most_concurrent = 0;
  std::vector<std::string> refused;          // why values of its runs are not used
  std::vector<const db::CurveRow*> results;  // rows of `throughput`
  int rerun = 0;           // number of repeats that were made again because an attempt was noisy
  int continued = 0;       // number of repeats that continued from a checkpoint after an interruption
  int rerun_attempts = 0;  // number of noisy attempts of the repeats that `rerun` counts

  int asked() const { return succeeded + failed + pending + cancelled; }
  // Reserves memory for the results of `count` rows.
  void Reserve(size_t count);
};

// The points of the runs with one fingerprint.
struct Hardware {
  std::vector<Point> points;
  absl::flat_hash_map<size_t, size_t> place;   // index in `points`, by index of the cell
  std::optional<CellRatios> ratios;            // of all points
  std::vector<std::vector<Outlier>> outliers;  // by point

  // Returns null if the cell has no point here.
  const Point* Find(size_t cell) const;
};

// Adds the results of `row`, the row of a run that succeeded, to its point. `concurrency` may be null.
void AddResults(const db::CurveRow& row, const std::vector<int>& block_of_repeat,
                const Concurrency* concurrency, Point& point);

}  // namespace scalelab::analysis
