#include "server/core/state.h"

#include <utility>

namespace scalelab::server {
namespace {

template <typename Map>
auto* Find(const Map& map, int64_t id) {
  const auto it = map.find(id);
  return it == map.end() ? nullptr : it->second.get();
}

}  // namespace

void StudyAllocations::Update(const LiveAllocation& allocation) {
  const int64_t id = allocation.row.id;
  ids_.insert(id);  // changes nothing during a loop over the ids
  ForgetState(id);
  if (Holds(allocation)) {
    parts_.emplace(id, allocation.part);
    if (allocation.part) holders_.emplace(*allocation.part, id);
  }
  if (!Serves(allocation)) return;
  serving_.insert(id);
  if (allocation.attempt_id == 0) unoccupied_[id] = {allocation.part, allocation.row.nodes};
}

void StudyAllocations::Remove(int64_t id) {
  ForgetState(id);
  ids_.erase(id);
}

void StudyAllocations::ForgetState(int64_t id) {
  if (const auto held = parts_.find(id); held != parts_.end()) {
    if (held->second) holders_.erase({*held->second, id});
    parts_.erase(held);
  }
  serving_.erase(id);
  unoccupied_.erase(id);
}

int64_t StudyAllocations::HolderOf(BlockPart part, int64_t except) const {
  auto it = holders_.lower_bound({part, 0});
  if (it != holders_.end() && *it == std::pair(part, except)) ++it;
  return it != holders_.end() && it->first == part ? it->second : 0;
}

int LiveStudy::PositionOf(int64_t run_id) const {
  // Ids of runs increase with the position.
  const auto run = std::lower_bound(runs.begin(), runs.end(), run_id,
                                    [](const db::RunRow& row, int64_t id) { return row.id < id; });
  return run != runs.end() && run->id == run_id ? run->position : -1;
}

void LiveStudy::UpdateAllocation(const LiveAllocation& allocation) {
  allocations.Update(allocation);
  const int position = PositionOf(allocation.row.run_id);
  if (position < 0) return;  // an allocation of a group
  allocated.insert(position);
  UpdateUnallocated(position);
}

void LiveStudy::RemoveAllocation(const LiveAllocation& allocation) {
  allocations.Remove(allocation.row.id);
  const int position = PositionOf(allocation.row.run_id);
  if (position < 0) return;
  allocated.erase(position);
  UpdateUnallocated(position);
}

void LiveStudy::ForgetAllocations() {
  allocations = {};
  for (const int position : std::exchange(allocated, {})) UpdateUnallocated(position);
}

void LiveStudy::UpdateUnallocated(int position) {
  if (spec.allocation() != v1::StudySpec::PER_RUN) return;
  if (runs[position].state == db::RunState::kQueued && !allocated.contains(position)) {
    unallocated.insert(position);
  } else {
    unallocated.erase(position);
  }
}

LiveStudy* State::study(int64_t id) const { return Find(studies, id); }
LiveAttempt* State::attempt(int64_t id) const { return Find(attempts, id); }
LiveAllocation* State::allocation(int64_t id) const { return Find(allocations, id); }

void LiveStudy::RunTook(int position, db::Micros time) {
  db::Micros& of_cell = longest[cell_of[position]];
  of_cell = std::max(of_cell, time);
  longest_of_all = std::max(longest_of_all, time);
}

void LiveStudy::EndDelays() {
  for (const auto& [position, until] : delayed) queued.insert(position);
  delayed.clear();
}

void LiveStudy::AttemptEnded(int position, const db::AttemptRow& attempt) {
  if (attempt.checkpoint_step == 0) return;
  int64_t& step = checkpoints[position];
  step = std::max(step, attempt.checkpoint_step);
}

void LiveStudy::CountSteps(const NumberedSteps& numbered, LiveAttempt& attempt) const {
  if (numbered.empty()) return;
  const int warmup = cells.Int(cell_of[attempt.position], v1::RunSpec::kWarmupStepsFieldNumber);
  const int64_t first = AddToStep(attempt.row.resumed_step, warmup);
  for (const auto& [step, bucket] : numbered) {
    if (step >= first) attempt.ranks[0].steps.Add(bucket);
  }
}

void ForgetGrid(v1::StudySpec& spec) {
  spec.clear_fixed();
  spec.clear_matrix();
  spec.clear_zip();
  spec.clear_exclude();
  spec.clear_baseline();
}

std::vector<LiveAttempt*> State::attempts_of(const LiveAllocation& allocation) const {
  std::vector<LiveAttempt*> found;
  if (LiveAttempt* current = attempt(allocation.attempt_id)) found.push_back(current);
  for (const int64_t id : allocation.next_attempts) found.push_back(attempt(id));
  return found;
}

PendingQueue QueueOf(const LiveAllocation& allocation) {
  return {allocation.row.owner, allocation.row.partition};
}

PendingQueue QueueOf(const LiveStudy& study) { return {study.row.owner, study.spec.resources().partition()}; }

}  // namespace scalelab::server
