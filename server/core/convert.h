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
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

// Sets `time` from microseconds since the Unix epoch. Callers skip 0, which means that the time is not known.
void SetTime(db::Micros micros, google::protobuf::Timestamp* time);

std::string StudyName(int64_t id);
std::string RunName(int64_t study_id, int64_t run_id);
std::string AllocationName(const std::string& token);

// Converts a study. `counts` has the number of runs in each db::RunState. Parses the specification
// only if `with_spec`.
v1::Study ToStudy(const db::StudyRow& row, const std::vector<int64_t>& counts, bool with_spec);
// Sets the fields that change during a run: state, cause, message and times.
void SetProgress(const db::RunRow& row, v1::Run* run);
v1::Run ToRun(const db::RunRow& row, Cell cell);
// Converts an attempt. `streams` are the event streams of the attempt, by rank. They contain
// the malformed lines.
v1::Attempt ToAttempt(const db::AttemptRow& row, int64_t study_id, const std::string& allocation_token,
                      const std::vector<db::StreamRow>& streams);
v1::Allocation ToAllocation(const LiveAllocation& allocation, const State& state);
v1::Worker ToWorker(const WorkerState& worker, const std::string& allocation_token);
v1::Partition ToPartition(const ClusterView::Partition& partition);
v1::Node ToNode(const ClusterView::Node& node);

}  // namespace scalelab::server
