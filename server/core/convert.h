// Converts between rows of the database and messages of the API.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "db/store.h"
#include "google/protobuf/struct.pb.h"
#include "scalelab/v1/cluster.pb.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"
#include "server/cells/message_json.h"
#include "server/core/state.h"
#include "server/runs/run_messages.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

// Converts a study. `counts` has the number of runs in each db::RunState. Parses the specification
// only if `with_spec`.
v1::Study ToStudy(const db::StudyRow& row, const std::vector<int64_t>& counts, bool with_spec);
v1::Allocation ToAllocation(const LiveAllocation& allocation, const State& state);
v1::Worker ToWorker(const WorkerState& worker, const std::string& allocation_token);
v1::Partition ToPartition(const ClusterView::Partition& partition);
v1::Node ToNode(const ClusterView::Node& node);

}  // namespace scalelab::server
