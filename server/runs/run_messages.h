// Converts the rows of runs and attempts to messages of the API.
#pragma once

#include <string>
#include <vector>

#include "db/records.h"
#include "google/protobuf/timestamp.pb.h"
#include "scalelab/v1/run.pb.h"
#include "study/cell_list.h"

namespace scalelab::server {

// Sets `time` from microseconds since the Unix epoch. Callers skip 0, which means that the time is not known.
void SetTime(db::Micros micros, google::protobuf::Timestamp* time);

std::string StudyName(int64_t id);
std::string RunName(int64_t study_id, int64_t run_id);
std::string AllocationName(const std::string& token);

// Sets the fields that change during a run: state, cause, message and times.
void SetProgress(const db::RunRow& row, v1::Run* run);
v1::Run ToRun(const db::RunRow& row, Cell cell);
// Converts an attempt. `streams` are the event streams of the attempt, by rank. They contain
// the malformed lines.
v1::Attempt ToAttempt(const db::AttemptRow& row, int64_t study_id, const std::string& allocation_token,
                      const std::vector<db::StreamRow>& streams);

}  // namespace scalelab::server
