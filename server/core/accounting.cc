#include "server/core/accounting.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/core/explain.h"

namespace scalelab::server {
namespace {

int GpusOf(const db::AllocationRow& row) { return row.nodes * row.ranks_per_node * row.gpus_per_rank; }

// Explains the position of the study in the queue.
std::string OrderReason(const State& state, const LiveStudy& study, double usage) {
  return absl::StrFormat("priority %d, %s has used %.4g %s-hours", study.row.priority, study.row.owner,
                         usage / 3600,
                         state.policy.fair_share.weight == FairShare::Weight::kGpus ? "GPU" : "node");
}

}  // namespace

Holding Uncharged(const LiveAllocation& allocation, db::Micros now) {
  const db::AllocationRow& row = allocation.row;
  Holding holding{row.owner, row.partition, row.nodes, GpusOf(row), now, now};
  // charged_until is before `started` if the clock was set back since the start.
  if (row.started != 0) holding.from = row.charged_until != 0 ? row.charged_until : row.started;
  return holding;
}

double GpuSecondsOf(const State& state, const LiveStudy& study, db::Micros now) {
  double seconds = study.gpu_seconds;
  for (const int64_t id : study.allocations) {
    const LiveAllocation& allocation = *state.allocation(id);
    const Holding rest = Uncharged(allocation, now);
    seconds += (1e-6 * static_cast<double>(allocation.row.held) + rest.seconds()) * rest.gpus;
  }
  return seconds;
}

CurrentUse::CurrentUse(const State& state, db::Micros now) : state_(state), now_(now) {
  const absl::Duration half_life = state.usage.half_life();
  for (const auto& [id, allocation] : state.allocations) {
    if (allocation->row.started == 0) continue;
    Held& held = held_[QueueOf(*allocation)];
    ++held.running;
    if (allocation->attempt_id == 0 && Serves(*allocation)) ++held.idle;
    const Holding rest = Uncharged(*allocation, now);
    AddHours(rest, held.hours);
    db::UsageRow& row = uncharged_[rest.owner];
    const double decayed = DecayedSeconds(rest.from, rest.until, now, half_life);
    row.decayed_node_seconds += decayed * rest.nodes;
    row.decayed_gpu_seconds += decayed * rest.gpus;
    row.node_seconds += rest.seconds() * rest.nodes;
    row.gpu_seconds += rest.seconds() * rest.gpus;
  }
  for (const auto& [id, attempt] : state.attempts) {
    if (const LiveStudy* study = state.study(attempt->study_id)) ++held_[QueueOf(*study)].attempts;
  }
}

db::UsageRow CurrentUse::UsageOf(const std::string& owner) const {
  db::UsageRow row = state_.usage.At(owner, now_);
  const auto it = uncharged_.find(owner);
  if (it == uncharged_.end()) return row;
  row.decayed_node_seconds += it->second.decayed_node_seconds;
  row.decayed_gpu_seconds += it->second.decayed_gpu_seconds;
  row.node_seconds += it->second.node_seconds;
  row.gpu_seconds += it->second.gpu_seconds;
  return row;
}

double CurrentUse::Share(const std::string& owner) const {
  const db::UsageRow row = UsageOf(owner);
  return state_.policy.fair_share.weight == FairShare::Weight::kGpus ? row.decayed_gpu_seconds
                                                                     : row.decayed_node_seconds;
}

double CurrentUse::GpuSecondsOfWeek(const PendingQueue& queue) const {
  const auto held = held_.find(queue);
  return state_.usage.GpuSecondsOfWeek(queue.first, queue.second, now_) +
         (held == held_.end() ? 0 : SumOfWeek(held->second.hours, now_));
}

double CurrentUse::GpuSecondsOfWeek(const std::string& owner) const {
  double sum = 0;
  for (const PendingQueue& queue : queues()) {
    if (queue.first == owner) sum += GpuSecondsOfWeek(queue);
  }
  return sum;
}

Use CurrentUse::UseOf(const PendingQueue& queue) const {
  Use use;
  for (const auto& [other, pending] : state_.pending) {
    if (other == queue) use.pending_allocations = pending;
    if (other.second == queue.second) use.pending_in_partition += pending;
  }
  use.runs = use.pending_allocations;
  if (const auto held = held_.find(queue); held != held_.end()) {
    use.running_allocations = held->second.running;
    use.runs += held->second.idle + held->second.attempts;
  }
  use.gpu_hours_week = GpuSecondsOfWeek(queue) / 3600;
  return use;
}

std::string CurrentUse::ReachedLimit(const PendingQueue& queue) const {
  return server::ReachedLimit(state_.policy.limits, queue.first, queue.second, UseOf(queue));
}

std::vector<PendingQueue> CurrentUse::queues() const {
  std::set<PendingQueue> found;
  for (const auto& [queue, held] : held_) found.insert(queue);
  for (const auto& [queue, pending] : state_.pending) found.insert(queue);
  for (const PendingQueue& queue : state_.usage.queues()) found.insert(queue);
  return {found.begin(), found.end()};
}

std::vector<QueueEntry> ListQueue(const State& state, db::Micros now, size_t limit) {
  const CurrentUse use(state, now);
  const auto share = [&](const std::string& owner) { return use.Share(owner); };
  std::vector<QueueEntry> entries;
  const auto add = [&](const LiveStudy& study, const std::string& waits_for) {
    const double usage = use.Share(study.row.owner);
    const std::string order = OrderReason(state, study, usage);
    entries.push_back({&study, usage, order,
                       absl::StrCat(order, ", submitted as number ", study.row.id,
                                    waits_for.empty() ? "" : "; ", waits_for)});
  };
  for (const int64_t id : state.waiting.Order(share, limit)) {
    const LiveStudy& study = *state.study(id);
    add(study, state.drain.on ? DrainText(state.drain) : use.ReachedLimit(QueueOf(study)));
  }
  std::map<int64_t, const LiveStudy*> others;
  for (const auto& [id, study] : state.studies) {
    const bool stopped = study->row.held || !study->row.pause_reason.empty();
    if (!study->queued.empty() && !study->row.cancel_requested && !state.waiting.Contains(id) &&
        (stopped || state.delayed.contains(id)))
      others[id] = study.get();
  }
  for (const auto& [id, study] : others) {
    if (entries.size() >= limit) break;
    add(*study, ExplainStudy(state, *study, now).front().message());
  }
  return entries;
}

}  // namespace scalelab::server
