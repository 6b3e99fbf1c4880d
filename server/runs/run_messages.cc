#include "server/runs/run_messages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace scalelab::server {

// The database stores states as the numbers of the API's enumerations, so the numbers must be equal.
static_assert(static_cast<int>(db::RunState::kSkipped) == v1::Run::SKIPPED);
static_assert(static_cast<int>(db::AttemptState::kCancelled) == v1::Attempt::CANCELLED);
static_assert(static_cast<int>(db::Cause::kNoisy) == v1::Attempt::NOISY);

void SetTime(db::Micros micros, google::protobuf::Timestamp* time) {
  time->set_seconds(micros / 1'000'000);
  time->set_nanos(static_cast<int32_t>(micros % 1'000'000) * 1000);
}

std::string StudyName(int64_t id) { return absl::StrCat("studies/", id); }
std::string RunName(int64_t study_id, int64_t run_id) {
  return absl::StrCat("studies/", study_id, "/runs/", run_id);
}
std::string AllocationName(const std::string& token) { return absl::StrCat("allocations/", token); }

void SetProgress(const db::RunRow& row, v1::Run* run) {
  run->set_state(static_cast<v1::Run::State>(row.state));
  run->set_cause(static_cast<v1::Attempt::Cause>(row.cause));
  run->set_message(row.message);
  run->set_noisy(row.state == db::RunState::kSucceeded && row.cause == db::Cause::kNoisy);
  if (row.started != 0) SetTime(row.started, run->mutable_start_time());
  if (row.finished != 0) SetTime(row.finished, run->mutable_finish_time());
}

v1::Run ToRun(const db::RunRow& row, Cell cell) {
  v1::Run run;
  run.set_name(RunName(row.study_id, row.id));
  *run.mutable_key() = std::move(cell.key);
  *run.mutable_spec() = std::move(cell.spec);
  run.mutable_spec()->set_seed(run.spec().seed() + row.repeat);
  run.set_repeat(row.repeat);
  run.set_position(row.position);
  SetProgress(row, &run);
  return run;
}

v1::Attempt ToAttempt(const db::AttemptRow& row, int64_t study_id, const std::string& allocation_token,
                      const std::vector<db::StreamRow>& streams) {
  v1::Attempt attempt;
  attempt.set_name(absl::StrCat(RunName(study_id, row.run_id), "/attempts/", row.token));
  attempt.set_number(row.number);
  attempt.set_state(static_cast<v1::Attempt::State>(row.state));
  attempt.set_cause(static_cast<v1::Attempt::Cause>(row.cause));
  attempt.set_message(row.message);
  if (!allocation_token.empty()) attempt.set_allocation(AllocationName(allocation_token));
  for (const auto node : absl::StrSplit(row.nodes, ',', absl::SkipEmpty()))
    attempt.add_nodes(std::string(node));
  SetTime(row.assigned, attempt.mutable_assign_time());
  if (row.started != 0) SetTime(row.started, attempt.mutable_start_time());
  if (row.finished != 0) SetTime(row.finished, attempt.mutable_finish_time());
  if (row.exit_status) attempt.set_exit_status(*row.exit_status);
  attempt.set_directory(row.directory);
  for (const db::StreamRow& stream : streams) {
    if (stream.malformed == 0) continue;
    if (attempt.malformed_lines() == 0) {
      attempt.set_first_malformed_line(absl::StrCat("rank ", stream.rank, ", ", stream.first_malformed));
    }
    attempt.set_malformed_lines(attempt.malformed_lines() + stream.malformed);
  }
  attempt.set_parameter_hash(row.parameter_hash);
  attempt.set_resumed_step(row.resumed_step);
  attempt.set_checkpoint_step(row.checkpoint_step);
  if (row.throughput) attempt.set_throughput(*row.throughput);
  if (row.epoch_seconds) attempt.set_epoch_seconds(*row.epoch_seconds);
  return attempt;
}

}  // namespace scalelab::server
