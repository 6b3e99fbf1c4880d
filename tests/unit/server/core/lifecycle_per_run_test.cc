// Tests of studies whose runs have their own allocations (AllocationMode PER_RUN).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "server/core/explain.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;
using JobState = JobStatus::State;

// A study whose jobs may all be pending at the same time.
struct PerRun : World {
  explicit PerRun(int runs, int concurrent = 0) {
    Policy policy;
    LimitRule rule;
    rule.pending_allocations = LimitSet::kNone;
    policy.limits.rules = {rule};
    lifecycle.Configure(policy, 30'000'000);
    auto spec = Spec({1}, runs);
    spec.set_allocation(v1::StudySpec::PER_RUN);
    spec.mutable_retry()->set_max(2);
    if (concurrent > 0) spec.mutable_limits()->set_concurrent_allocations(concurrent);
    id = Submit(spec);
  }
  // Makes the allocations that the study may have. Returns the tokens of their jobs.
  std::vector<std::string> Plan() {
    lifecycle.Plan(now, fx);
    std::vector<std::string> tokens;
    for (const JobRequest& request : fx.submit) tokens.push_back(request.token);
    fx.submit.clear();
    return tokens;
  }
  int64_t id = 0;
};

TEST(PerRun, ACompletionVisitsNoOtherAllocation) {
  for (const int concurrent : {0, 100}) {
    PerRun w(concurrent == 0 ? 100 : 150, concurrent);
    const std::vector<std::string> jobs = w.Plan();
    ASSERT_EQ(jobs.size(), 100u);
    auto others = TakeOthers(w.state, jobs[7]);
    w.Job(jobs[7], JobState::kRunning);
    const auto desired = w.Sync(jobs[7]);
    ASSERT_EQ(desired.attempts_size(), 1);
    EXPECT_TRUE(w.Finish(jobs[7], desired).terminate());
    EXPECT_EQ(w.run_state(w.id, 7), db::RunState::kSucceeded);
    w.Job(jobs[7], JobState::kCompleted);
    ASSERT_TRUE(w.lifecycle.SetPriority(w.id, 3, w.now, w.fx).ok());
    EXPECT_EQ(w.Plan().size(), concurrent == 0 ? 0u : 1u);
    w.state.allocations.merge(others);
    EXPECT_EQ(w.study(w.id).allocations.size(), concurrent == 0 ? 99u : 100u);
  }
}

TEST(PerRun, AnotherAllocationIsMadeWithoutVisitingTheEarlierOnes) {
  PerRun w(100, 50);
  const std::vector<std::string> jobs = w.Plan();
  ASSERT_EQ(jobs.size(), 50u);
  // Only queued runs without an allocation are considered for the next one.
  EXPECT_EQ(w.study(w.id).unallocated.size(), 50u);
  EXPECT_EQ(*w.study(w.id).unallocated.begin(), 50);
  auto others = TakeOthers(w.state, jobs[3]);
  w.Job(jobs[3], JobState::kPreempted);
  const std::vector<std::string> next = w.Plan();
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(w.state.allocation(w.state.allocation_by_token.at(next[0]))->row.run_id,
            w.study(w.id).runs[50].id)
      << "the run of the preempted allocation waits before the next try";
  w.state.allocations.merge(others);
  EXPECT_THAT(w.study(w.id).unallocated, testing::Contains(3));
}

TEST(PerRun, ARunWhoseAllocationEndedGetsAnother) {
  PerRun w(3);
  const std::vector<std::string> jobs = w.Plan();
  ASSERT_EQ(jobs.size(), 3u);
  w.Job(jobs[1], JobState::kPreempted);
  EXPECT_THAT(w.Plan(), testing::IsEmpty());
  w.After(10);
  const std::vector<std::string> again = w.Plan();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(w.state.allocation(w.state.allocation_by_token.at(again[0]))->row.run_id,
            w.study(w.id).runs[1].id);
}

TEST(PerRun, ARetriedFinalStudyCountsTheAllocationsThatHaveNotEnded) {
  for (const bool ends : {false, true}) {
    PerRun w(2);
    const std::vector<std::string> jobs = w.Plan();
    for (const std::string& job : jobs) w.Job(job, JobState::kRunning);
    ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
    ASSERT_EQ(w.study(w.id).row.state, db::StudyState::kCancelled);
    // The coordinator removes a final study, and loads it from the database for a retry.
    std::unique_ptr<LiveStudy> study = std::move(w.state.studies.extract(w.id).mapped());
    if (ends) w.Job(jobs[1], JobState::kCompleted);
    const int64_t run = study->runs[1].id;
    ASSERT_TRUE(w.lifecycle.Retry(w.id, run, std::move(study), w.state.final_changes, w.now, w.fx).ok());
    ExpectCounted(w.state);
    EXPECT_EQ(w.study(w.id).allocations.size(), ends ? 1u : 2u);
    EXPECT_EQ(w.Plan().size(), ends ? 1u : 0u) << "a run has one allocation at a time";
  }
}

TEST(PerRun, RunsWithAnAllocationAreNotAheadInTheExplanation) {
  PerRun w(5, 2);
  ASSERT_EQ(w.Plan().size(), 2u);
  std::string text;
  for (const v1::Reason& reason : ExplainRun(w.state, w.study(w.id), 4, w.now))
    text += reason.message() + "\n";
  EXPECT_THAT(text, HasSubstr("2 queued runs of its study go first"));
}

// Random events of jobs, workers and users. The counts must stay correct after each.
TEST(PerRun, CountsStayCorrect) {
  for (int seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
    PerRun w(30, seed % 2 == 0 ? 8 : 0);
    std::map<std::string, v1::SynchronizeResponse> desired;  // by token of a job that runs
    for (int step = 0; step < 400 && w.state.study(w.id) != nullptr; ++step) {
      for (const std::string& job : w.Plan()) desired[job];
      std::erase_if(desired,
                    [&](const auto& job) { return !w.state.allocation_by_token.contains(job.first); });
      const LiveStudy& study = w.study(w.id);
      if (IsFinal(study.row.state)) break;
      const auto at = desired.empty() ? desired.end() : std::next(desired.begin(), below(desired.size()));
      switch (below(12)) {
        case 0:
          w.After(1.0 + static_cast<double>(below(20)));
          break;
        case 1:
          if (below(5) == 0) {
            ASSERT_TRUE(w.lifecycle.CancelRun(w.id, study.runs[below(30)].id, w.now, w.fx).ok());
          }
          break;
        case 2:
          ASSERT_TRUE(w.lifecycle.HoldStudy(w.id, w.now, w.fx).ok());
          break;
        case 3:
        case 4:
          ASSERT_TRUE(w.lifecycle.ReleaseStudy(w.id, w.now, w.fx).ok());
          ASSERT_TRUE(w.lifecycle.ResumeStudy(w.id, w.now, w.fx).ok());
          break;
        case 5:
          if (at != desired.end() && below(3) == 0) w.Job(at->first, JobState::kPreempted);
          break;
        case 6:
          if (at != desired.end() && at->second.terminate()) w.Job(at->first, JobState::kCompleted);
          break;
        case 7:
          if (at != desired.end() && at->second.attempts_size() > 0) {
            const v1::Attempt::Cause cause =
                below(2) == 0 ? v1::Attempt::BOOT_FAIL : v1::Attempt::CAUSE_UNSPECIFIED;
            at->second = w.Sync(at->first, {World::Ended(at->second.attempts(0).token(), 1, cause)});
          }
          break;
        case 8:
          if (at != desired.end() && at->second.attempts_size() > 0)
            at->second = w.Finish(at->first, at->second);
          break;
        default:
          if (at == desired.end()) break;
          w.Job(at->first, JobState::kRunning);
          if (w.state.allocation_by_token.contains(at->first)) at->second = w.Sync(at->first);
      }
      ExpectCounted(w.state);
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace scalelab::server
