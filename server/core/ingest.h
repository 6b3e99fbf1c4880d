// Event batches of workers, made ready outside the core thread for the one transaction that stores them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "db/records.h"
#include "scalelab/v1/worker.pb.h"

namespace scalelab::server {

// One part of a rank's event file. `append.attempt_id` and the epochs' are set when the token is known to be
// live.
struct ParsedBatch {
  std::string token;
  db::StreamAppend append;
  std::vector<db::EpochRow> epochs;
  std::optional<std::map<std::string, double>> finish_metrics;
  std::optional<int64_t> total_steps;  // of a start line
  std::optional<int64_t> last_step;
  std::optional<double> last_loss;
};

// INVALID_ARGUMENT names what does not fit together (columns of unequal length, positions that run
// backwards).
absl::StatusOr<ParsedBatch> ParseBatch(const v1::EventBatch& batch);

}  // namespace scalelab::server
