#include "server/core/convert.h"

#include "server/cells/parsed_messages.h"

namespace scalelab::server {

// The database stores states as the numbers of the API's enumerations, so the numbers must be equal.
static_assert(static_cast<int>(db::StudyState::kCancelled) == v1::Study::CANCELLED);
static_assert(static_cast<int>(db::AllocationState::kEnded) == v1::Allocation::ENDED);

v1::Study ToStudy(const db::StudyRow& row, const std::vector<int64_t>& counts, bool with_spec) {
  v1::Study study;
  study.set_name(StudyName(row.id));
  study.set_display_name(row.name);
  study.set_owner(row.owner);
  study.set_state(static_cast<v1::Study::State>(row.state));
  if (with_spec) {
    // A specification that cannot be parsed is reported where it is used.
    if (const auto spec = MessagesOfProcess<v1::StudySpec>().Get(row.spec); spec.ok())
      *study.mutable_spec() = **spec;
  }
  const auto count = [&](db::RunState s) {
    const size_t i = static_cast<size_t>(s);
    return i < counts.size() ? static_cast<int32_t>(counts[i]) : 0;
  };
  v1::RunCounts& c = *study.mutable_counts();
  c.set_queued(count(db::RunState::kQueued));
  c.set_running(count(db::RunState::kRunning));
  c.set_succeeded(count(db::RunState::kSucceeded));
  c.set_failed(count(db::RunState::kFailed));
  c.set_cancelled(count(db::RunState::kCancelled));
  c.set_skipped(count(db::RunState::kSkipped));
  study.set_pause_reason(row.pause_reason);
  study.set_held(row.held);
  study.set_priority(row.priority);
  SetTime(row.created, study.mutable_create_time());
  if (row.started != 0) SetTime(row.started, study.mutable_start_time());
  if (row.finished != 0) SetTime(row.finished, study.mutable_finish_time());
  return study;
}

v1::Allocation ToAllocation(const LiveAllocation& from, const State& state) {
  v1::Allocation allocation;
  allocation.set_name(AllocationName(from.row.token));
  allocation.set_state(static_cast<v1::Allocation::State>(from.row.state));
  allocation.set_external_id(from.row.external_id);
  allocation.set_study(StudyName(from.row.study_id));
  allocation.set_nodes(from.row.nodes);
  allocation.set_slots_per_node(from.row.ranks_per_node);
  allocation.set_reason(from.row.reason);
  SetTime(from.row.created, allocation.mutable_create_time());
  if (from.row.started != 0) SetTime(from.row.started, allocation.mutable_start_time());
  if (from.ends_at != 0) SetTime(from.ends_at, allocation.mutable_end_time());
  for (const auto& [index, worker] : from.workers) allocation.add_node_names(worker.node);
  if (const LiveAttempt* attempt = state.attempt(from.attempt_id)) {
    allocation.set_run(RunName(attempt->study_id, attempt->row.run_id));
  }
  return allocation;
}

v1::Worker ToWorker(const WorkerState& from, const std::string& allocation_token) {
  v1::Worker worker;
  worker.set_node(from.node);
  worker.set_allocation(AllocationName(allocation_token));
  worker.set_version(from.version);
  SetTime(from.last_seen, worker.mutable_last_seen_time());
  worker.set_cpus(from.info.cpus());
  *worker.mutable_gpus() = from.info.gpus();
  return worker;
}

v1::Partition ToPartition(const ClusterView::Partition& from) {
  v1::Partition partition;
  partition.set_name(from.name);
  partition.set_is_default(from.is_default);
  partition.set_state(from.state);
  if (from.max_time != absl::InfiniteDuration())
    partition.set_max_time_seconds(absl::ToInt64Seconds(from.max_time));
  partition.set_nodes(from.nodes);
  partition.set_idle_nodes(from.idle_nodes);
  return partition;
}

v1::Node ToNode(const ClusterView::Node& from) {
  v1::Node node;
  node.set_name(from.name);
  for (const std::string& partition : from.partitions) node.add_partitions(partition);
  node.set_state(from.state);
  node.set_reason(from.reason);
  node.set_cpus(from.cpus);
  node.set_cpus_allocated(from.cpus_allocated);
  node.set_memory_mib(from.memory_mib);
  node.set_gpus(from.gpus);
  node.set_gpus_allocated(from.gpus_allocated);
  return node;
}

}  // namespace scalelab::server
