// Parses event batches of workers outside the core thread, before a transaction stores them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "db/records.h"
#include "scalelab/v1/worker.pb.h"
#include "server/core/step_times.h"

namespace scalelab::server {

// A part of a rank's event file. Lifecycle::Ingest sets the attempt ids of `append` and `epochs`.
struct ParsedBatch {
  std::string token;
  db::StreamAppend append;
  std::vector<db::EpochRow> epochs;
  std::optional<std::map<std::string, double>> finish_metrics;
  std::optional<int64_t> total_steps;      // from a start event
  std::optional<int64_t> resumed_step;     // from a start event
  std::optional<int64_t> checkpoint_step;  // from the last checkpoint event
  std::optional<int64_t> last_step;
  std::optional<double> last_loss;
  NumberedSteps steps;  // of rank 0
};

// Returns the number of points in the batches.
size_t PointsOf(const std::vector<ParsedBatch>& batches);

// Returns INVALID_ARGUMENT if the parts of the batch contradict each other, such as columns of unequal length
// or an end position before the begin position.
absl::StatusOr<ParsedBatch> ParseBatch(const v1::EventBatch& batch);

}  // namespace scalelab::server
