#include "server/core/explain.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/core/accounting.h"
#include "server/core/blocks.h"
#include "server/core/convert.h"
#include "server/core/lifecycle.h"

namespace scalelab::server {
namespace {

using v1::Reason;

Reason Make(Reason::Kind kind, std::string message, std::string subject = "", db::Micros since = 0) {
  Reason reason;
  reason.set_kind(kind);
  reason.set_message(std::move(message));
  reason.set_subject(std::move(subject));
  if (since != 0) SetTime(since, reason.mutable_since_time());
  return reason;
}

// Sets the time of the next try, unless it has passed. Then the try is in flight.
Reason TriedAgain(Reason reason, db::Micros next_try, db::Micros now) {
  if (next_try > now) SetTime(next_try, reason.mutable_next_try_time());
  return reason;
}

// Returns "job 42", or "its job" while the job has no number yet.
std::string JobText(const db::AllocationRow& row) {
  return row.external_id.empty() ? "its job" : absl::StrCat("job ", row.external_id);
}

std::string Because(const std::string& reason) { return reason.empty() ? "" : absl::StrCat(": ", reason); }

// Returns "1 run" or "2 runs".
std::string Count(size_t n, absl::string_view what) { return absl::StrCat(n, " ", what, n == 1 ? "" : "s"); }

// Returns the reason of an allocation whose job has not ended after many cancels.
Reason CancelFailed(const LiveAllocation& allocation, db::Micros now) {
  return TriedAgain(Make(Reason::STOPPING, FailedCancelText(allocation), AllocationName(allocation.row.token),
                         allocation.first_cancel),
                    allocation.cancel_again_at, now);
}

// Collects the reasons why one run is queued. The first reason is about the run itself, the last one about the cluster.
class Chain {
 public:
  Chain(const State& state, const LiveStudy& study, int position, db::Micros now)
      : state_(state), study_(study), run_(study.runs[position]), now_(now) {}

  std::vector<Reason> Explain() {
    if (!study_.row.pause_reason.empty()) {
      return {Make(Reason::PAUSED,
                   absl::StrCat("its study is paused: ", study_.row.pause_reason,
                                "; repair the cause, then run `scalelab study resume ", study_.row.id, "`"),
                   StudyName(study_.row.id))};
    }
    if (study_.row.held) {
      reasons_.push_back(
          Make(Reason::PAUSED,
               absl::StrCat("its study is held; `scalelab study release ", study_.row.id, "` ends that"),
               StudyName(study_.row.id)));
    }
    if (state_.drain.on) {
      reasons_.push_back(Make(Reason::COORDINATOR_CAP, DrainText(state_.drain), "", state_.drain.since));
    }
    if (!reasons_.empty()) return std::move(reasons_);
    if (const auto delayed = study_.delayed.find(run_.position); delayed != study_.delayed.end()) {
      return {TriedAgain(
          Make(Reason::RETRY,
               absl::StrCat("it waits before it is tried again, longer after each failure: ", run_.message),
               Name(run_.id)),
          delayed->second, now_)};
    }
    const LiveAllocation* allocation = Allocation();
    if (allocation != nullptr && ServesOtherBlock(*allocation)) {
      AddOtherBlocks();
    } else if (allocation != nullptr) {
      AddAllocation(*allocation);
    } else if (state_.waiting.Contains(study_.row.id)) {
      AddQueue();
    } else if (!state_.delayed.contains(study_.row.id) || !AddDelay()) {
      AddNoneWanted();
    }
    AddStudyOrder(allocation);
    if (run_.attempts > 0) reasons_.push_back(Make(Reason::RETRY, run_.message, Name(run_.id)));
    return std::move(reasons_);
  }

 private:
  std::string Name(int64_t run_id) const { return RunName(study_.row.id, run_id); }

  // Returns the allocation that may serve the run, or null if there is none. If several may, prefers those that serve
  // nothing else, then the one whose state is the most advanced.
  const LiveAllocation* Allocation() const {
    if (Grouped()) {
      const LiveAllocation* holder =
          state_.allocation(study_.allocations.HolderOf(PartOf(study_, run_.position)));
      if (holder != nullptr && Serves(*holder)) return holder;
    }
    const bool more = state_.waiting.Contains(study_.row.id) || state_.delayed.contains(study_.row.id);
    const LiveAllocation* best = nullptr;
    bool best_busy = false;
    for (const int64_t id : study_.allocations) {
      const LiveAllocation* other = state_.allocation(id);
      if (!Serves(*other) || !MayServe(*other)) continue;
      const bool busy = Parallel() && IsBusy(study_, *other);
      if (busy && more) continue;  // the study will get another allocation for the run
      const bool better = best == nullptr || (best_busy && !busy) ||
                          (best_busy == busy && other->row.state > best->row.state);
      if (!better) continue;
      best = other;
      best_busy = busy;
    }
    return best;
  }

  bool Grouped() const { return study_.spec.allocation() != v1::StudySpec::PER_RUN; }
  bool Parallel() const { return Grouped() && ConcurrentAllocations(study_.spec) > 1; }

  bool ServesOtherBlock(const LiveAllocation& allocation) const {
    return Parallel() && IsBusy(study_, allocation) && allocation.part != PartOf(study_, run_.position);
  }

  void AddOtherBlocks() {
    const size_t allocations = study_.allocations.holding();
    reasons_.push_back(Make(Reason::STUDY_CAP,
                            allocations == 1 ? "the allocation of its study serves another block"
                                             : absl::StrCat("each of the ", allocations,
                                                            " allocations of its study serves another block"),
                            StudyName(study_.row.id)));
  }

  bool MayServe(const LiveAllocation& allocation) const {
    if (!Grouped()) return allocation.row.run_id == run_.id;
    return ShapeIndexOf(study_, allocation) == PartOf(study_, run_.position).shape;
  }

  void AddAllocation(const LiveAllocation& allocation) {
    const db::AllocationRow& row = allocation.row;
    const std::string name = AllocationName(row.token);
    switch (row.state) {
      case db::AllocationState::kIntended:
        AddIfAway();
        if (row.reason.empty()) {
          reasons_.push_back(Make(Reason::SCHEDULER_PENDING, "its job is being submitted to the scheduler",
                                  name, row.created));
        } else {
          reasons_.push_back(TriedAgain(
              Make(Reason::SCHEDULER_REFUSED,
                   absl::StrCat("the scheduler did not accept its job yet: ", row.reason), name, row.created),
              allocation.retry_at, now_));
        }
        break;
      case db::AllocationState::kPending:
        AddIfAway();
        reasons_.push_back(
            Make(Reason::SCHEDULER_PENDING,
                 allocation.forgotten == 0
                     ? absl::StrCat(JobText(row), " waits at the scheduler", Because(row.reason))
                     : absl::StrCat("its job was submitted ", allocation.forgotten + 1,
                                    " times, because the scheduler did not list it"),
                 name, row.created));
        AddHolders(row);
        break;
      default:
        AddRunning(allocation);
    }
    if (Waits(row.state)) AddExcluded(allocation);
  }

  // Adds the studies whose jobs run in the partition in which the job waits. The scheduler's reason does
  // not name them.
  void AddHolders(const db::AllocationRow& waiting) {
    constexpr size_t kNamed = 3;
    struct Holding {
      int nodes = 0;
      db::Micros ends_at = 0;  // the first end; 0: not known
    };
    std::map<int64_t, Holding> holders;  // by study
    for (const auto& [id, other] : state_.allocations) {
      const bool holds = other->row.state == db::AllocationState::kRunning ||
                         other->row.state == db::AllocationState::kReleasing;
      if (!holds || other->row.partition != waiting.partition) continue;
      Holding& holding = holders[other->row.study_id];
      holding.nodes += other->row.nodes;
      if (holding.ends_at == 0 || (other->ends_at != 0 && other->ends_at < holding.ends_at))
        holding.ends_at = other->ends_at;
    }
    std::vector<std::string> named;
    std::string subject;
    for (const auto& [id, holding] : holders) {
      if (named.size() == kNamed) break;
      const LiveStudy* study = state_.study(id);
      // The caller may not have permission to see the other study.
      const bool hidden = study == nullptr || study->row.is_private;
      if (!hidden && subject.empty()) subject = StudyName(id);
      named.push_back(
          absl::StrCat(hidden ? "a private study" : absl::StrCat(StudyName(id), " (", study->row.name, ")"),
                       " on ", Count(static_cast<size_t>(holding.nodes), "node"),
                       holding.ends_at <= now_
                           ? ""
                           : absl::StrCat(", at most ",
                                          absl::FormatDuration(absl::Trunc(
                                              absl::Microseconds(holding.ends_at - now_), absl::Seconds(1))),
                                          " more")));
    }
    if (named.empty()) return;
    if (holders.size() > kNamed) named.push_back(absl::StrCat(holders.size() - kNamed, " more"));
    reasons_.push_back(Make(Reason::BEHIND_STUDY,
                            absl::StrCat("jobs of these studies run there: ", absl::StrJoin(named, "; ")),
                            subject));
  }

  // Adds the nodes that the job excludes. The job may wait because of them.
  void AddExcluded(const LiveAllocation& allocation) {
    if (allocation.excluded.empty()) return;
    std::string nodes;
    db::Micros since = 0, until = 0;
    for (const AvoidedNode& node : state_.bad_nodes.Avoided(now_)) {
      if (std::find(allocation.excluded.begin(), allocation.excluded.end(), node.name) ==
          allocation.excluded.end())
        continue;
      absl::StrAppend(&nodes, nodes.empty() ? "" : "; ", node.name, " (", node.reason, ")");
      since = since == 0 ? node.since : std::min(since, node.since);
      until = std::max(until, node.until);
    }
    if (nodes.empty()) return;
    reasons_.push_back(
        TriedAgain(Make(Reason::NODES_AVOIDED,
                        absl::StrCat(JobText(allocation.row),
                                     " does not use nodes on which attempts failed again and again: ", nodes),
                        AllocationName(allocation.row.token), since),
                   until, now_));
  }

  void AddRunning(const LiveAllocation& allocation) {
    const db::AllocationRow& row = allocation.row;
    const std::string name = AllocationName(row.token);
    const LiveAttempt* attempt = state_.attempt(allocation.attempt_id);
    if (attempt != nullptr && attempt->row.state == db::AttemptState::kStopping) {
      reasons_.push_back(Make(Reason::STOPPING,
                              absl::StrCat("runs/", attempt->row.run_id, " is being stopped there"),
                              Name(attempt->row.run_id), attempt->stopping_since));
    }
    if (allocation.ending || allocation.leaving_since != 0) {
      reasons_.push_back(Make(Reason::STOPPING,
                              absl::StrCat(JobText(row), " is being ended; another follows"), name,
                              allocation.leaving_since));
    } else if (!FitsInto(allocation, study_, run_.position, now_)) {
      const absl::Duration left =
          absl::Trunc(absl::Microseconds(allocation.ends_at - now_), absl::Seconds(1));
      reasons_.push_back(
          Make(Reason::WALL_CLOCK,
               absl::StrCat(JobText(row), " reaches its time limit in ", absl::FormatDuration(left),
                            ", too soon for it; the next allocation serves it"),
               name));
    }
    if (attempt != nullptr || !reasons_.empty()) return;  // the order of the study explains the rest
    reasons_.push_back(Make(Reason::WORKERS_STARTING,
                            absl::StrCat(allocation.workers.size(), " of ", Count(row.nodes, "worker"),
                                         " of ", JobText(row), " reported"),
                            name, row.started));
  }

  // Adds reasons for a study that waits for an allocation and for which no job has been submitted.
  void AddQueue() {
    AddIfAway();
    const std::string limit = CurrentUse(state_, now_).ReachedLimit(QueueOf(study_));
    reasons_.push_back(limit.empty() ? Make(Reason::SCHEDULER_PENDING, "its job is about to be submitted")
                                     : Make(Reason::COORDINATOR_CAP, limit));
    const std::vector<int64_t> before = state_.waiting.Before(study_.row.id);
    if (before.empty()) return;
    const LiveStudy& first = *state_.study(before.front());
    const std::string why =
        first.row.priority > study_.row.priority
            ? absl::StrCat("its priority ", first.row.priority, " is higher than ", study_.row.priority)
            : "it was submitted earlier";
    // The caller may not have permission to see the other study.
    const bool hidden = first.row.is_private;
    const std::string name =
        hidden ? "a private study" : absl::StrCat(StudyName(first.row.id), " (", first.row.name, ")");
    std::string message = absl::StrCat(name, " goes first: ", why);
    if (before.size() > 1) absl::StrAppend(&message, "; then ", before.size() - 1, " more");
    reasons_.push_back(Make(Reason::BEHIND_STUDY, std::move(message), hidden ? "" : StudyName(first.row.id)));
  }

  // Adds the delay of the next allocation, if earlier allocations ended before they executed an attempt.
  bool AddDelay() {
    const bool per_run = study_.spec.allocation() == v1::StudySpec::PER_RUN;
    const auto failed = study_.failed_allocations.find(per_run ? run_.id : 0);
    if (failed == study_.failed_allocations.end()) return false;
    const auto& [count, retry_at, reason] = failed->second;
    reasons_.push_back(TriedAgain(
        Make(Reason::RETRY, absl::StrCat(count == 1 ? "its last allocation"
                                                    : absl::StrCat("its last ", count, " allocations"),
                                         " ended before an attempt began", Because(reason))),
        retry_at, now_));
    return true;
  }

  // Adds the reason why the study gets no further allocation: it has reached its limit, or an
  // allocation is ending.
  void AddNoneWanted() {
    size_t serving = 0;
    const LiveAllocation* ending = nullptr;
    for (const int64_t id : study_.allocations) {
      const LiveAllocation* allocation = state_.allocation(id);
      if (Serves(*allocation)) {
        ++serving;
      } else if (ending == nullptr || !ending->cancel_failed) {
        ending = allocation;
      }
    }
    if (serving > 0) {
      const bool capped = serving >= static_cast<size_t>(ConcurrentAllocations(study_.spec));
      reasons_.push_back(Make(Reason::STUDY_CAP,
                              absl::StrCat("its study has ", Count(serving, "allocation"),
                                           capped ? ", as many as its limits.concurrent_allocations allows"
                                                  : " already, one for every run that needs one"),
                              StudyName(study_.row.id)));
    } else if (ending != nullptr && ending->cancel_failed) {
      reasons_.push_back(CancelFailed(*ending, now_));
    } else if (ending != nullptr) {
      reasons_.push_back(Make(Reason::STOPPING,
                              absl::StrCat(JobText(ending->row), " is being ended",
                                           Because(ending->row.reason), "; another follows"),
                              AllocationName(ending->row.token)));
    } else {
      reasons_.push_back(Make(Reason::SCHEDULER_PENDING, "its job is about to be submitted"));
    }
  }

  void AddStudyOrder(const LiveAllocation* allocation) {
    if (allocation != nullptr && allocation->row.run_id == run_.id)
      return;  // the allocation is for this run only
    std::string message, subject;
    const bool elsewhere = allocation != nullptr && ServesOtherBlock(*allocation);
    const LiveAttempt* attempt =
        allocation == nullptr || elsewhere ? nullptr : state_.attempt(allocation->attempt_id);
    if (attempt != nullptr) {
      subject = Name(attempt->row.run_id);
      message = absl::StrCat("runs/", attempt->row.run_id, " has the allocation of its ",
                             Parallel() ? "block" : "study", " now");
    }
    const bool in_block = Parallel() && allocation != nullptr && !elsewhere && allocation->part.has_value();
    size_t ahead = 0;
    for (const int position : study_.queued) {
      if (position >= run_.position) break;
      const int64_t id = study_.runs[position].id;
      const bool has_allocation = !Grouped() && !study_.unallocated.contains(position);
      if (has_allocation || (in_block && PartOf(study_, position) != *allocation->part)) continue;
      if (subject.empty()) subject = Name(id);
      ++ahead;
    }
    if (ahead > 0) {
      absl::StrAppend(&message, message.empty() ? "" : ", and ", Count(ahead, "queued run"),
                      in_block ? " of its block " : " of its study ", ahead == 1 ? "goes" : "go", " first");
    }
    if (!message.empty()) reasons_.push_back(Make(Reason::STUDY_ORDER, std::move(message), subject));
  }

  void AddIfAway() {
    const SchedulerHealth& health = state_.scheduler;
    if (health.error.empty()) return;
    reasons_.push_back(
        TriedAgain(Make(Reason::SCHEDULER_AWAY, absl::StrCat("the scheduler does not answer: ", health.error),
                        "", health.since),
                   health.next_ask, now_));
  }

  const State& state_;
  const LiveStudy& study_;
  const db::RunRow& run_;
  const db::Micros now_;
  std::vector<Reason> reasons_;
};

// Returns the second half of the sentence about event files that are being read.
std::string HowRead(const LiveAttempt& attempt) {
  const Recovery& recovery = *attempt.recovery;
  if (recovery.away != 0) return absl::StrCat("cannot be read yet: ", recovery.error);
  if (recovery.slow) return absl::StrCat("is being read slowly, ", recovery.bytes >> 20, " MiB so far");
  return "is being read";
}

Reason Running(const State& state, const LiveStudy& study, const db::RunRow& run, db::Micros now) {
  const std::string name = RunName(study.row.id, run.id);
  for (const int64_t id : study.allocations) {
    const LiveAllocation& allocation = *state.allocation(id);
    const std::vector<LiveAttempt*> attempts = state.attempts_of(allocation);
    const auto found = std::find_if(attempts.begin(), attempts.end(), [&](const LiveAttempt* a) {
      return !a->recovery && a->row.run_id == run.id;
    });
    if (found == attempts.end()) continue;
    const LiveAttempt* attempt = *found;
    if (allocation.cancel_failed) return CancelFailed(allocation, now);
    if (attempt->row.state == db::AttemptState::kStopping) {
      return Make(Reason::STOPPING, "it is being stopped", name, attempt->stopping_since);
    }
    if (allocation.cancel_sent) {
      return Make(Reason::STOPPING,
                  absl::StrCat(JobText(allocation.row), " is being ended", Because(allocation.row.reason)),
                  AllocationName(allocation.row.token));
    }
    const bool runs = attempt->row.state == db::AttemptState::kRunning;
    return Make(Reason::RUNNING,
                absl::StrCat("attempt ", attempt->row.number, runs ? " runs on " : " is being started on ",
                             attempt->row.nodes),
                name, runs ? attempt->row.started : attempt->row.assigned);
  }
  for (const int64_t id : state.recovering) {
    const LiveAttempt& attempt = *state.attempt(id);
    if (attempt.row.run_id != run.id) continue;
    return TriedAgain(
        Make(Reason::STOPPING,
             absl::StrCat("the workers of attempt ", attempt.row.number, " are gone",
                          Because(attempt.row.message), "; the rest of its event files ", HowRead(attempt)),
             name, attempt.recovery->since),
        attempt.recovery->retry_at, now);
  }
  return Make(Reason::RUNNING, "it runs", name, run.started);
}

}  // namespace

// Returns why a run does not begin whose block is needed only if earlier results are not precise enough.
static Reason HeldBack(const LiveStudy& study, const db::RunRow& run) {
  return Make(Reason::STUDY_ORDER,
              absl::StrCat("it runs only if the results of the ", run.repeat,
                           " blocks before it are not precise enough (repeats.until)",
                           study.assessing ? ", which is being examined now" : ""),
              StudyName(study.row.id));
}

std::string DrainText(const db::DrainRow& drain) {
  return absl::StrCat("no run begins because the service is being drained", Because(drain.reason),
                      "; an admin ends that with `scalelab admin undrain`");
}

// Returns the reasons of a study without those of other jobs that do not end.
static std::vector<Reason> StudyReasons(const State& state, const LiveStudy& study, db::Micros now) {
  if (IsFinal(study.row.state)) return {FinalReason(study.row, {study.counts.begin(), study.counts.end()})};
  if (!study.queued.empty()) return ExplainRun(state, study, *study.queued.begin(), now);
  if (!study.delayed.empty()) {
    const auto first = std::min_element(study.delayed.begin(), study.delayed.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
    return ExplainRun(state, study, first->first, now);
  }
  const auto running = static_cast<size_t>(study.counts[static_cast<int>(db::RunState::kRunning)]);
  const std::string name = StudyName(study.row.id);
  if (WaitsForAssessment(study) && running == 0) return {HeldBack(study, study.runs[*study.later.begin()])};
  if (study.row.cancel_requested) {
    return {
        Make(Reason::STOPPING, absl::StrCat("it was cancelled; ", Count(running, "run"), " to stop"), name)};
  }
  return {Make(Reason::RUNNING, absl::StrCat("none is queued; ", Count(running, "run"), " left to end"), name,
               study.row.started)};
}

std::vector<Reason> ExplainStudy(const State& state, const LiveStudy& study, db::Micros now) {
  std::vector<Reason> reasons = StudyReasons(state, study, now);
  const bool none_waits = study.queued.empty() && study.delayed.empty();
  for (const int64_t id : study.allocations) {
    const LiveAllocation& allocation = *state.allocation(id);
    if (!allocation.cancel_failed) continue;
    const std::string name = AllocationName(allocation.row.token);
    if (std::any_of(reasons.begin(), reasons.end(), [&](const Reason& r) { return r.subject() == name; }))
      continue;
    const bool first = none_waits && allocation.attempt_id != 0;  // the study cannot end before its attempt
    reasons.insert(first ? reasons.begin() : reasons.end(), CancelFailed(allocation, now));
  }
  return reasons;
}

std::vector<Reason> ExplainJobsLeft(const State& state, int64_t study_id, db::Micros now) {
  std::vector<Reason> reasons;
  for (const auto& [id, allocation] : state.allocations) {
    if (allocation->row.study_id == study_id && allocation->cancel_failed)
      reasons.push_back(CancelFailed(*allocation, now));
  }
  return reasons;
}

std::vector<Reason> ExplainRun(const State& state, const LiveStudy& study, int position, db::Micros now) {
  const db::RunRow& run = study.runs[position];
  if (IsFinal(run.state)) return {FinalReason(run)};
  if (run.state == db::RunState::kRunning) return {Running(state, study, run, now)};
  if (study.later.contains(position)) return {HeldBack(study, run)};
  return Chain(state, study, position, now).Explain();
}

Reason FinalReason(const db::StudyRow& study, const std::vector<int64_t>& counts) {
  const auto count = [&](db::RunState s) { return counts.at(static_cast<size_t>(s)); };
  std::string message;
  switch (study.state) {
    case db::StudyState::kSucceeded:
      message = absl::StrCat("it is over: ", count(db::RunState::kSucceeded), " of ", study.runs,
                             " runs succeeded");
      if (count(db::RunState::kSkipped) > 0)
        absl::StrAppend(&message, ", and ", count(db::RunState::kSkipped), " were not needed");
      break;
    case db::StudyState::kCancelled:
      message = absl::StrCat("it was cancelled; ", count(db::RunState::kSucceeded), " of ", study.runs,
                             " runs had succeeded");
      break;
    default:
      message =
          absl::StrCat("it is over: ", count(db::RunState::kFailed), " of ", study.runs, " runs failed");
  }
  return Make(Reason::FINAL, std::move(message), StudyName(study.id), study.finished);
}

Reason FinalReason(const db::RunRow& run) {
  const std::string message = run.state == db::RunState::kSucceeded   ? "it is over: it succeeded"
                              : run.state == db::RunState::kCancelled ? "it was cancelled"
                              : run.state == db::RunState::kSkipped
                                  ? run.message
                                  : "it is over: it failed" + Because(run.message);
  return Make(Reason::FINAL, message, RunName(run.study_id, run.id), run.finished);
}

}  // namespace scalelab::server
