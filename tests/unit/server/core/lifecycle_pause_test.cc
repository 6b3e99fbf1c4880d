// Tests of studies that are paused, and of runs that are retried on request.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/lifecycle.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using JobState = JobStatus::State;
using testing::HasSubstr;

// A study with many runs in one allocation, for tests of what happens when they fail.
struct ManyRuns : World {
  explicit ManyRuns(int repeats) {
    auto spec = Spec({1}, repeats);
    spec.mutable_retry()->set_max(0);
    id = Submit(spec);
    job = AskedFor();
    Job(job, JobState::kRunning);
    desired = Sync(job);
  }
  // Ends the current attempt.
  void Fail(v1::Attempt::Cause cause = v1::Attempt::CAUSE_UNSPECIFIED) {
    desired = Sync(job, {Ended(desired.attempts(0).token(), 1, cause)});
  }
  int64_t id;
  std::string job;
  v1::SynchronizeResponse desired;
};

TEST(Lifecycle, AStudyWhoseFirstRunsAllFailTheSameWayIsPausedUntilItIsResumed) {
  ManyRuns w(20);
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(w.desired.attempts_size(), 1) << i;
    w.Fail();
  }
  EXPECT_EQ(w.desired.attempts_size(), 0);
  EXPECT_TRUE(w.desired.terminate());
  EXPECT_EQ(w.study(w.id).row.pause_reason,
            "its first 5 runs failed in the same way: exit status 1: last words");
  EXPECT_EQ(w.study(w.id).queued.size(), 15u);
  w.Job(w.job, JobState::kCompleted);
  w.After(1000);
  EXPECT_EQ(w.AskedFor(), "");
  ASSERT_TRUE(w.lifecycle.ResumeStudy(w.id, w.now, w.fx).ok());
  w.job = w.AskedFor();
  w.Job(w.job, JobState::kRunning);
  w.desired = w.Sync(w.job);
  for (int i = 0; i < 14; ++i) {
    ASSERT_EQ(w.desired.attempts_size(), 1) << i;
    w.Fail();
  }
  EXPECT_EQ(w.study(w.id).queued.size(), 0u) << "it is not paused again for the same reason";
}

TEST(Lifecycle, AStudyThatHasSucceededOnceIsNotPaused) {
  ManyRuns w(10);
  w.desired = w.Finish(w.job, w.desired);
  for (int i = 0; i < 9; ++i) w.Fail();
  EXPECT_EQ(w.study(w.id).row.state, db::StudyState::kFailed);
}

TEST(Lifecycle, AStudyWhoseFilesCannotBeWrittenIsPausedAndLosesNoRun) {
  ManyRuns w(4);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(w.desired.attempts_size(), 1) << i;
    w.Fail(v1::Attempt::STORAGE_ERROR);
  }
  EXPECT_THAT(w.study(w.id).row.pause_reason, HasSubstr("3 attempts in a row could not write their files: "));
  EXPECT_EQ(w.study(w.id).counts[static_cast<int>(db::RunState::kQueued)], 4);
  w.Job(w.job, JobState::kCompleted);
  ASSERT_TRUE(w.lifecycle.ResumeStudy(w.id, w.now, w.fx).ok());
  w.job = w.AskedFor();
  w.Job(w.job, JobState::kRunning);
  w.desired = w.Sync(w.job);
  w.Finish(w.job, w.desired);
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kSucceeded);
}

TEST(Lifecycle, FailedRunsAreRetriedOnRequestWithNewRetries) {
  ManyRuns w(3);
  w.Fail();
  w.desired = w.Finish(w.job, w.desired);
  ASSERT_TRUE(w.lifecycle.Retry(w.id, 0, nullptr, 0, w.now, w.fx).ok());
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kQueued);
  EXPECT_EQ(w.run_state(w.id, 1), db::RunState::kSucceeded);
  EXPECT_EQ(w.study(w.id).runs[0].uncounted, 1);
  const absl::Status nothing = w.lifecycle.Retry(w.id, 0, nullptr, 0, w.now, w.fx);
  EXPECT_EQ(nothing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(nothing.message(), "studies/1 has no failed run; nothing is changed");
}

TEST(Lifecycle, AStudyThatHasChangedSinceItWasReadIsNotRetried) {
  World w;
  EXPECT_EQ(w.lifecycle.Retry(7, 0, std::make_unique<LiveStudy>(), -1, w.now, w.fx).code(),
            absl::StatusCode::kAborted);
}

TEST(Lifecycle, AllocationsThatAPauseCancelsAreNoFailures) {
  World w;
  auto spec = World::Spec({1}, 9);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  spec.mutable_retry()->set_max(0);
  const int64_t id = w.Submit(spec);
  std::set<std::string> ended;
  for (int failure = 0; failure < 5; ++failure) {
    w.lifecycle.Plan(w.now, w.fx);
    std::string job;
    for (const JobRequest& request : w.fx.submit) {
      if (!ended.contains(request.token)) job = request.token;
    }
    ended.insert(job);
    w.Job(job, JobState::kRunning);
    const auto desired = w.Sync(job);
    ASSERT_EQ(desired.attempts_size(), 1);
    w.Sync(job, {World::Ended(desired.attempts(0).token(), 1)});
    w.Job(job, JobState::kCompleted);
  }
  ASSERT_NE(w.study(id).row.pause_reason, "");
  for (const JobRequest& request : std::vector<JobRequest>(w.fx.submit)) {
    if (ended.contains(request.token)) continue;
    EXPECT_TRUE(w.Cancelled(request.token));
    w.lifecycle.JobSubmitted(request.token, std::string("17"), w.now, w.fx);
    w.Job(request.token, JobState::kCancelled);
  }
  EXPECT_TRUE(w.study(id).failed_allocations.empty());
  EXPECT_TRUE(w.state.pending.empty());
}

TEST(Lifecycle, APausedStudyThatIsCancelledIsNotPausedAnyMore) {
  ManyRuns w(20);
  for (int i = 0; i < 5; ++i) w.Fail();
  ASSERT_NE(w.study(w.id).row.pause_reason, "");
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  EXPECT_EQ(w.study(w.id).row.state, db::StudyState::kCancelled);
  EXPECT_EQ(w.study(w.id).row.pause_reason, "");
}

TEST(Lifecycle, OneFailureAfterManyPreemptionsIsRetried) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  for (int i = 0; i < 20; ++i) {
    w.After(400);
    w.Job(w.AskedFor(), i < 19 ? JobState::kPreempted : JobState::kFailed);
  }
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kQueued);
}

}  // namespace
}  // namespace scalelab::server
