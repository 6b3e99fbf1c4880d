// Implements the functions of Lifecycle that share the cluster among studies: charges, holds,
// priorities, drain mode.
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/core/accounting.h"
#include "server/core/convert.h"
#include "server/core/lifecycle.h"

namespace scalelab::server {
namespace {

absl::Status StudyIsFinal(int64_t study_id) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "STUDY_FINAL",
                   absl::StrCat(StudyName(study_id), " is over; nothing is changed"));
}

}  // namespace

void Lifecycle::Configure(const Policy& policy, db::Micros worker_timeout) {
  options_.worker_timeout = worker_timeout;
  state_.policy = policy;
  state_.usage.set_half_life(policy.fair_share.half_life);
}

void Lifecycle::Charge(LiveAllocation& allocation, db::Micros now, Effects& fx) {
  if (allocation.row.started == 0) return;
  const Holding rest = Uncharged(allocation, now);
  state_.usage.Charge(rest, now, fx.batch);
  if (rest.until > rest.from) allocation.row.held += rest.until - rest.from;
  allocation.row.charged_until = now;
}

void Lifecycle::StoreMovedCharge(LiveAllocation& allocation, Effects& fx) {
  if (std::exchange(allocation.charge_moved, false)) fx.batch.allocations.push_back(allocation.row);
}

std::string Lifecycle::WhyNotBegin(const LiveStudy& study) const {
  if (study.row.cancel_requested) return "the study was cancelled";
  if (!study.row.pause_reason.empty()) return "the study is paused";
  if (study.row.held) return "the study is held";
  if (state_.drain.on) return "the service is being drained";
  return "";
}

void Lifecycle::Withdraw(LiveAllocation& allocation, db::Micros now, Effects& fx) {
  const LiveStudy* study = state_.study(allocation.row.study_id);
  if (study == nullptr || allocation.attempt_id != 0 || !Serves(allocation)) return;
  const std::string why = WhyNotBegin(*study);
  if (why.empty()) return;
  allocation.withdrawn = true;
  Release(allocation, why, now, fx);
}

void Lifecycle::WithdrawAll(LiveStudy& study, db::Micros now, Effects& fx) {
  const std::vector<int64_t> allocations(study.allocations.begin(), study.allocations.end());
  for (const int64_t id : allocations) Withdraw(*state_.allocation(id), now, fx);
}

absl::Status Lifecycle::HoldStudy(int64_t study_id, db::Micros now, Effects& fx) {
  LiveStudy* study = state_.study(study_id);
  if (study == nullptr || IsFinal(study->row.state)) return StudyIsFinal(study_id);
  if (study->row.held) return absl::OkStatus();
  study->row.held = true;
  ++study->revision;
  fx.batch.studies.push_back(study->row);
  fx.changed_studies.insert(study_id);
  WithdrawAll(*study, now, fx);
  UpdateWaiting(*study, now);
  return absl::OkStatus();
}

absl::Status Lifecycle::ReleaseStudy(int64_t study_id, db::Micros now, Effects& fx) {
  LiveStudy* study = state_.study(study_id);
  if (study == nullptr || !study->row.held) return absl::OkStatus();
  study->row.held = false;
  ++study->revision;
  fx.batch.studies.push_back(study->row);
  fx.changed_studies.insert(study_id);
  UpdateWaiting(*study, now);
  return absl::OkStatus();
}

absl::Status Lifecycle::SetPriority(int64_t study_id, int priority, db::Micros now, Effects& fx) {
  LiveStudy* study = state_.study(study_id);
  if (study == nullptr || IsFinal(study->row.state)) return StudyIsFinal(study_id);
  if (study->row.priority == priority) return absl::OkStatus();
  study->row.priority = priority;
  ++study->revision;
  fx.batch.studies.push_back(study->row);
  fx.changed_studies.insert(study_id);
  state_.waiting.Remove(study_id);  // its position has changed
  UpdateWaiting(*study, now);
  return absl::OkStatus();
}

db::FirstIds Lifecycle::ReserveIds(const db::IdCounts& count) {
  using db::Numbered;
  const std::pair<Numbered, int64_t*> last_ids[] = {{Numbered::kStudy, &state_.last_study_id},
                                                    {Numbered::kCell, &state_.last_cell_id},
                                                    {Numbered::kRun, &state_.last_run_id},
                                                    {Numbered::kAllocation, &state_.last_allocation_id},
                                                    {Numbered::kAttempt, &state_.last_attempt_id}};
  db::FirstIds first{};
  for (const auto& [kind, last] : last_ids) {
    first[static_cast<size_t>(kind)] = *last + 1;
    *last += count[static_cast<size_t>(kind)];
  }
  return first;
}

int Lifecycle::SetDrain(bool on, const std::string& reason, db::Micros now, Effects& fx) {
  if (state_.drain.on != on || state_.drain.reason != reason) {
    const db::Micros since = on && state_.drain.on ? state_.drain.since : now;
    state_.drain = {1, on, on ? reason : "", since};
    fx.batch.drain = state_.drain;
    for (const auto& [id, study] : state_.studies) {
      ++study->revision;
      fx.changed_studies.insert(id);
      if (on) WithdrawAll(*study, now, fx);
    }
  }
  return static_cast<int>(state_.attempts.size());
}

}  // namespace scalelab::server
