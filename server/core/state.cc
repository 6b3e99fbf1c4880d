#include "server/core/state.h"

namespace scalelab::server {
namespace {

template <typename Map>
auto* Find(const Map& map, int64_t id) {
  const auto it = map.find(id);
  return it == map.end() ? nullptr : it->second.get();
}

}  // namespace

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
