// Cancelled studies and runs, the stops of their attempts, and jobs that the scheduler has suspended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/lifecycle.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using JobState = JobStatus::State;

TEST(Lifecycle, CancellingAStudyCancelsWhatWaitsAndStopsWhatRuns) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}, 3));
  const std::string job = w.AskedFor();
  const auto desired = w.Sync(job);
  const std::string token = desired.attempts(0).token();
  w.Sync(job, {World::Running(token)});
  ASSERT_TRUE(w.lifecycle.CancelStudy(id, w.now, w.fx).ok());
  EXPECT_EQ(w.run_state(id, 1), db::RunState::kCancelled);
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kRunning);
  const auto stop = w.Sync(job, {World::Running(token)});
  EXPECT_TRUE(stop.attempts(0).stop());
  auto ended = World::Ended(token, 143);
  ended.set_stopped(true);
  const auto after = w.Sync(job, {ended});
  EXPECT_TRUE(after.terminate());
  EXPECT_EQ(w.study(id).row.state, db::StudyState::kCancelled);
  EXPECT_EQ(w.AskedFor(), "");
}

TEST(Lifecycle, AReportFromBeforeTheAssignmentDoesNotEndACancelledAttempt) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  const std::string token = w.Sync(job).attempts(0).token();
  w.received.clear();  // the worker has not received the attempt yet
  ASSERT_TRUE(w.lifecycle.CancelStudy(id, w.now, w.fx).ok());
  w.Sync(job);  // such as a repetition of the first report
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kRunning);
  w.Sync(job, {World::Running(token)});
  EXPECT_EQ(w.Report(token, 0, 0, 10).position(), 10) << "the coordinator accepts the events of the attempt";
  auto ended = World::Ended(token, 143);
  ended.set_stopped(true);
  w.Sync(job, {ended});
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kCancelled);
}

TEST(Lifecycle, AWorkerThatKnowsOfAStopAndHasNotBegunTheAttemptEndsIt) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  w.Sync(job);
  ASSERT_TRUE(w.lifecycle.CancelStudy(id, w.now, w.fx).ok());
  EXPECT_TRUE(w.Sync(job).attempts(0).stop());
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kRunning);
  w.Sync(job);
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kCancelled);
}

TEST(Lifecycle, ALeavingWorkerThatHasNotBegunAStoppedAttemptEndsIt) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  w.Sync(job);
  w.received.clear();  // the worker has not received the attempt, and begins none from now on
  ASSERT_TRUE(w.lifecycle.CancelStudy(id, w.now, w.fx).ok());
  w.Sync(job, {}, "life-1", /*leaving=*/true);
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kCancelled);
}

TEST(Lifecycle, CancellingAStudyThatWaitsForItsAllocationEndsTheJob) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  ASSERT_TRUE(w.lifecycle.CancelStudy(id, w.now, w.fx).ok());
  EXPECT_TRUE(w.Cancelled(job));
  EXPECT_EQ(w.study(id).row.state, db::StudyState::kCancelled);
  EXPECT_TRUE(w.state.pending.empty());
  w.lifecycle.JobSubmitted(job, std::string("17"), w.now, w.fx);
  w.Job(job, JobState::kUnknown);
  EXPECT_TRUE(w.state.pending.empty());
  EXPECT_TRUE(w.state.allocations.empty());
}

TEST(Lifecycle, OnlyAFinalStudyCanBeDeleted) {
  OneRun w;
  EXPECT_TRUE(absl::IsFailedPrecondition(w.lifecycle.DeleteStudy(w.id, w.fx)));
  EXPECT_TRUE(w.fx.batch.deleted_studies.empty());
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(w.lifecycle.DeleteStudy(w.id, w.fx))) << "its run is being stopped";
  w.Sync(w.job, {World::Ended(w.token, 143)});
  EXPECT_TRUE(w.lifecycle.DeleteStudy(w.id, w.fx).ok());
  EXPECT_EQ(w.fx.batch.deleted_studies, std::vector<int64_t>{w.id});
}

TEST(Lifecycle, AStopThatDoesNotHappenEndsTheAllocation) {
  OneRun w;
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  for (int i = 0; i < 3; ++i) {
    w.After(10);
    w.Sync(w.job, {World::Running(w.token)});
  }
  EXPECT_TRUE(w.Cancelled(w.job));
  w.Job(w.job, JobState::kCancelled);
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kCancelled);
}

TEST(Lifecycle, CancellingOneRunLetsTheOthersRun) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}, 2));
  const std::string job = w.AskedFor();
  const std::string token = w.Sync(job).attempts(0).token();
  w.Sync(job, {World::Running(token)});
  ASSERT_TRUE(w.lifecycle.CancelRun(id, w.study(id).runs[0].id, w.now, w.fx).ok());
  auto ended = World::Ended(token, 143);
  ended.set_stopped(true);
  const auto next = w.Sync(job, {ended});
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kCancelled);
  ASSERT_EQ(next.attempts_size(), 1);
  w.Finish(job, next);
  EXPECT_EQ(w.study(id).row.state, db::StudyState::kCancelled);
}

TEST(Lifecycle, CancellingAQueuedRunEndsItsPendingJob) {
  World w;
  auto spec = World::Spec({1}, 6);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  const int64_t id = w.Submit(spec);
  w.lifecycle.Plan(w.now, w.fx);
  ASSERT_EQ(w.fx.submit.size(), 4u);
  const std::string job = w.fx.submit[0].token;
  ASSERT_TRUE(w.lifecycle.CancelRun(id, w.study(id).runs[0].id, w.now, w.fx).ok());
  EXPECT_TRUE(w.Cancelled(job));
  w.lifecycle.Plan(w.now, w.fx);
  EXPECT_EQ(w.fx.submit.size(), 5u) << "its place is free";
}

TEST(Lifecycle, ASuspendedJobIsNotCancelledForSilence) {
  OneRun w;
  for (int minute = 0; minute < 60; ++minute) {
    JobStatus status{w.job, "job-1", JobState::kRunning, "it is suspended"};
    status.suspended = true;
    w.lifecycle.JobsPolled({status}, w.now, w.now, w.fx);
    w.After(20);
  }
  EXPECT_FALSE(w.Cancelled(w.job));
}

TEST(Lifecycle, ASuspendedJobIsNotCancelledForSilenceWhileTheSchedulerDoesNotAnswer) {
  OneRun w;
  JobStatus suspended{w.job, "job-1", JobState::kRunning, "it is suspended"};
  suspended.suspended = true;
  w.lifecycle.JobsPolled({suspended}, w.now, w.now, w.fx);
  for (int poll = 0; poll < 10; ++poll) w.After(20);  // polls fail, and the job may still be suspended
  EXPECT_FALSE(w.Cancelled(w.job));
  w.Job(w.job, JobState::kRunning);  // its worker continues, and has not reported yet
  w.After(20);
  EXPECT_FALSE(w.Cancelled(w.job));
  w.After(20);
  EXPECT_TRUE(w.Cancelled(w.job)) << "its worker is silent although it is not suspended";
}

// A study of two runs, the first of which is executed and then cancelled.
struct OneOfTwoCancelled : World {
  OneOfTwoCancelled() {
    id = Submit(Spec({1}, 2));
    job = AskedFor();
    Job(job, JobState::kRunning);
    token = Sync(job).attempts(0).token();
    Sync(job, {Running(token)});
    EXPECT_TRUE(lifecycle.CancelRun(id, study(id).runs[0].id, now, fx).ok());
  }
  int64_t id;
  std::string job, token;
};

TEST(Lifecycle, ACancelledRunOfASuspendedJobLeavesTheAllocationToTheOthers) {
  OneOfTwoCancelled w;
  JobStatus suspended{w.job, "job-1", JobState::kRunning, "it is suspended"};
  suspended.suspended = true;
  for (int poll = 0; poll < 10; ++poll) {
    w.After(20);
    w.lifecycle.JobsPolled({suspended}, w.now, w.now, w.fx);
  }
  w.After(20);
  w.Job(w.job, JobState::kRunning);  // its worker continues, and has not reported yet
  w.After(5);
  EXPECT_FALSE(w.Cancelled(w.job));
  EXPECT_TRUE(w.Sync(w.job, {World::Running(w.token)}).attempts(0).stop());
  w.After(15);
  EXPECT_FALSE(w.Cancelled(w.job));
  auto ended = World::Ended(w.token, 143);
  ended.set_stopped(true);
  const auto next = w.Sync(w.job, {ended});
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kCancelled);
  ASSERT_EQ(next.attempts_size(), 1);
  EXPECT_NE(next.attempts(0).token(), w.token);
}

TEST(Lifecycle, ASuspensionAfterTheStopWasSentDoesNotCount) {
  OneOfTwoCancelled w;
  w.Sync(w.job, {World::Running(w.token)});
  w.After(1);
  JobStatus suspended{w.job, "job-1", JobState::kRunning, "it is suspended"};
  suspended.suspended = true;
  w.lifecycle.JobsPolled({suspended}, w.now, w.now, w.fx);
  w.After(29);
  w.Sync(w.job, {World::Running(w.token)});  // the job has continued before the next poll
  w.Job(w.job, JobState::kRunning);
  w.After(15);
  EXPECT_FALSE(w.Cancelled(w.job));
}

TEST(Lifecycle, TheTimeoutOfAStopDoesNotCountTheTimeWithoutReports) {
  OneOfTwoCancelled w;
  w.After(25);
  EXPECT_FALSE(w.Cancelled(w.job));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(w.Sync(w.job, {World::Running(w.token)}).attempts(0).stop());
    w.After(15);
    EXPECT_FALSE(w.Cancelled(w.job));
  }
  w.Sync(w.job, {World::Running(w.token)});
  w.After(1);
  EXPECT_TRUE(w.Cancelled(w.job)) << "its worker reports, and does not stop the attempt";
  OneOfTwoCancelled silent;
  silent.After(31);
  EXPECT_TRUE(silent.Cancelled(silent.job));
}

TEST(Lifecycle, ACancelledStudyEndsItsSuspendedJob) {
  OneRun w;
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  JobStatus suspended{w.job, "job-1", JobState::kRunning, "it is suspended"};
  suspended.suspended = true;
  w.lifecycle.JobsPolled({suspended}, w.now, w.now, w.fx);
  w.After(21);
  EXPECT_TRUE(w.Cancelled(w.job));
}

}  // namespace
}  // namespace scalelab::server
