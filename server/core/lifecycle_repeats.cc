// Implements the functions of Lifecycle that decide how many blocks a study with adaptive_repeats runs.
//
// All blocks are planned at submit. LiveStudy::later has the blocks that may not be needed. When the earlier
// blocks are complete, an assessment of the results outside the core thread decides whether the next blocks
// are queued or all remaining blocks are skipped. The database stores only the states of the runs. After a
// restart, the same results lead to the same decision.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/core/blocks.h"
#include "server/core/convert.h"
#include "server/core/lifecycle.h"
#include "study/shapes.h"

namespace scalelab::server {
namespace {

constexpr int kMostFailures = 5;
constexpr db::Micros kFirstRetry = 1'000'000;

// Returns the number of blocks to queue at a time, which is the number of blocks that run at the same time.
int BlocksAtOnce(const LiveStudy& study) {
  return study.spec.allocation() == v1::StudySpec::PER_RUN ? 1
                                                           : std::max(1, ConcurrentAllocations(study.spec));
}

}  // namespace

void Lifecycle::HoldLaterBlocks(LiveStudy& study) const {
  if (!options_.assess || !study.spec.has_adaptive_repeats() || !study.later.empty()) return;
  int blocks = study.spec.adaptive_repeats().min();
  for (const db::RunRow& run : study.runs) {
    if (run.attempts > 0) blocks = std::max(blocks, run.repeat + 1);
  }
  const auto first = std::find_if(study.queued.begin(), study.queued.end(),
                                  [&](int position) { return study.runs[position].repeat >= blocks; });
  study.later.insert(first, study.queued.end());
  study.queued.erase(first, study.queued.end());
}

void Lifecycle::AssessIfDue(LiveStudy& study, db::Micros now, Effects& fx) {
  const bool due = WaitsForAssessment(study) && study.delayed.empty() &&
                   study.counts[static_cast<int>(db::RunState::kRunning)] == 0;
  if (!due || study.assessing || study.row.cancel_requested) {
    state_.reassess.erase(study.row.id);
    return;
  }
  if (study.assess_at > now) {
    state_.reassess.insert(study.row.id);
    return;
  }
  state_.reassess.erase(study.row.id);
  study.assessing = true;
  fx.assess.push_back({study.row.id, study.runs[*study.later.begin()].repeat});
}

void Lifecycle::Assessed(const AssessRequest& request, const absl::StatusOr<Assessment>& assessment,
                         db::Micros now, Effects& fx) {
  LiveStudy* study = state_.study(request.study_id);
  if (study == nullptr || !study->assessing) return;
  study->assessing = false;
  // The decision is outdated: a failed run was queued again, or the study was cancelled.
  if (!WaitsForAssessment(*study) || !study->delayed.empty()) return;
  if (!assessment.ok() && ++study->failed_assessments < kMostFailures) {
    study->assess_at = now + (kFirstRetry << study->failed_assessments);
    fx.warnings.push_back(
        absl::StrCat("the results of ", StudyName(request.study_id),
                     " cannot be assessed, and are tried again: ", assessment.status().ToString()));
    return AssessIfDue(*study, now, fx);
  }
  study->failed_assessments = 0;
  study->assess_at = 0;
  if (!assessment.ok() || !assessment->enough) return RunMoreBlocks(*study, now, fx);
  for (const int position : std::set<int>(study->later)) {
    study->runs[position].message = assessment->reason;
    SetRunState(*study, position, db::RunState::kSkipped, now, fx);
  }
  UpdateStudy(*study, now, fx);
}

void Lifecycle::RunMoreBlocks(LiveStudy& study, db::Micros now, Effects& fx) {
  const int end = study.runs[*study.later.begin()].repeat + BlocksAtOnce(study);
  while (!study.later.empty() && study.runs[*study.later.begin()].repeat < end)
    study.queued.insert(study.later.extract(study.later.begin()));
  ++study.revision;
  fx.changed_studies.insert(study.row.id);
  const std::vector<int64_t> allocations(study.allocations.begin(), study.allocations.end());
  for (const int64_t id : allocations) Assign(*state_.allocation(id), now, fx);
  UpdateWaiting(study, now);
}

}  // namespace scalelab::server
