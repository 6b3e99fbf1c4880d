// Rows of the database <-> messages of the API.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "db/store.h"
#include "google/protobuf/struct.pb.h"
#include "scalelab/v1/cluster.pb.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"
#include "server/scheduler/scheduler.h"
#include "server/core/state.h"

namespace scalelab::server {

// 0 gives no timestamp.
void SetTime(db::Micros micros, google::protobuf::Timestamp* time);

std::string StudyName(int64_t id);
std::string RunName(int64_t study_id, int64_t run_id);
std::string AllocationName(const std::string& token);

// Compact protobuf JSON with proto field names and sorted keys: equal messages give equal text. Parsing
// ignores unknown fields, which a newer version may have stored.
std::string ToJson(const google::protobuf::Message& message);
// With defaults written out; for messages without maps.
std::string ToFullJson(const google::protobuf::Message& message);
absl::Status FromJson(const std::string& json, google::protobuf::Message* message);

// `counts` by db::RunState. The specification is parsed only when `with_spec`.
v1::Study ToStudy(const db::StudyRow& row, const std::vector<int64_t>& counts, bool with_spec);
// What of a run changes while it lives: state, cause, message, times.
void SetProgress(const db::RunRow& row, v1::Run* run);
v1::Run ToRun(const db::RunRow& row, const db::CellRow& cell);
v1::Attempt ToAttempt(const db::AttemptRow& row, int64_t study_id, const std::string& allocation_token,
                      int64_t malformed_lines);
v1::Allocation ToAllocation(const AllocationState& allocation, const State& state);
v1::Worker ToWorker(const WorkerState& worker, const std::string& allocation_token);
v1::Partition ToPartition(const ClusterView::Partition& partition);
v1::Node ToNode(const ClusterView::Node& node);

}  // namespace scalelab::server
