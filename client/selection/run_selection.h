// Conditions on runs, and their order. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/repeated_field.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab::client {

// A run has the fields run, repeat, position, state, cause, message, seconds (from start to finish), throughput, its axes, and
// all parameters of its specification (`scalelab study keys`).
struct RunSelection {
  // Conditions (see conditions.h), also joined by "and": "engine=native/* and ranks>=4 and state!=succeeded". Empty: all runs.
  std::vector<std::string> where;
  std::string sort;  // a field; with a leading '-' the largest first; empty: the order of execution
  int limit = 0;     // 0: no limit
};

// Keeps the selected runs, in the wanted order. INVALID_ARGUMENT with the condition and the known fields if `where` or `sort`
// cannot be understood.
absl::Status SelectRuns(const RunSelection& selection,
                        google::protobuf::RepeatedPtrField<scalelab::v1::Run>& runs);

}  // namespace scalelab::client
