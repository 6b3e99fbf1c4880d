// Decisions about clusters: several nodes, time limits, and reports of the scheduler.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/lifecycle.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using JobState = JobStatus::State;
using testing::HasSubstr;

// Two nodes with two ranks each.
struct TwoNodes : World {
  explicit TwoNodes(std::vector<int> ranks, int repeats = 1) {
    v1::StudySpec spec = Spec(std::move(ranks), repeats);
    spec.mutable_resources()->set_ranks_per_node(2);
    id = Submit(spec);
    job = AskedFor();
  }
  v1::SynchronizeResponse On(int node, std::vector<Status> attempts = {}) {
    return Sync(job, std::move(attempts), absl::StrCat("life-of-", node), false, node);
  }
  int64_t id;
  std::string job;
};

TEST(LifecycleOnClusters, AnAttemptBeginsWhenTheWorkersOfAllNodesAreThere) {
  TwoNodes w({4});
  EXPECT_EQ(w.On(0).attempts_size(), 0);
  const auto desired = w.On(1);
  ASSERT_EQ(desired.attempts_size(), 1);
  EXPECT_THAT(desired.attempts(0).nodes(), testing::ElementsAre("node-0", "node-1"));
  EXPECT_EQ(desired.attempts(0).ranks_per_node(), 2);
}

TEST(LifecycleOnClusters, ASmallRunUsesTheFirstNodesOnly) {
  TwoNodes w({2, 4});
  w.On(0);
  EXPECT_EQ(w.On(1).attempts_size(), 0);
  const auto desired = w.On(0);
  ASSERT_EQ(desired.attempts_size(), 1);
  EXPECT_THAT(desired.attempts(0).nodes(), testing::ElementsAre("node-0"));
  for (int r = 0; r < 2; ++r) w.Report(desired.attempts(0).token(), r, 0, 10, true);
  EXPECT_EQ(w.On(0, {World::Ended(desired.attempts(0).token())}).attempts(0).spec().ranks(), 4);
}

TEST(LifecycleOnClusters, AnAttemptIsOverWhenItIsOverOnEveryNode) {
  TwoNodes w({4});
  w.On(0);
  const std::string token = w.On(1).attempts(0).token();
  w.On(0, {World::Running(token)});
  w.On(1, {World::Running(token)});
  for (int r = 0; r < 4; ++r) w.Report(token, r, 0, 10, r < 2);
  w.On(0, {World::Ended(token)});
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kRunning);
  EXPECT_TRUE(w.On(1, {World::Running(token)}).attempts(0).stop())
      << "its ranks have ended, and the rest of their events has to be sent";
  for (int r = 2; r < 4; ++r) w.Report(token, r, 10, 20, true);
  auto ended = World::Ended(token);
  ended.set_stopped(true);
  w.On(1, {ended});
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kSucceeded);
}

TEST(LifecycleOnClusters, ANodeThatCannotTakePartEndsTheAttemptForItsOwnReason) {
  TwoNodes w({4});
  w.On(0);
  const std::string token = w.On(1).attempts(0).token();
  w.On(1, {World::Ended(token, 126, v1::Attempt::LAUNCH_ERROR)});
  EXPECT_TRUE(w.On(0, {World::Running(token)}).attempts(0).stop());
  auto ended = World::Ended(token, 143);
  ended.set_stopped(true);
  w.On(0, {ended});
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kFailed);
  EXPECT_EQ(w.study(w.id).runs[0].cause, db::Cause::kLaunchError);
}

TEST(LifecycleOnClusters, ASilentWorkerOnAnyNodeEndsTheAllocation) {
  TwoNodes w({4});
  w.On(0);
  const std::string token = w.On(1).attempts(0).token();
  for (int i = 0; i < 2; ++i) {
    w.After(20);
    w.On(0, {World::Running(token)});
  }
  EXPECT_TRUE(w.Cancelled(w.job));
  w.Job(w.job, JobState::kCancelled);
  EXPECT_THAT(w.study(w.id).runs[0].message, HasSubstr("node-1"));
}

TEST(LifecycleOnClusters, AnAllocationSomeOfWhoseWorkersNeverComeIsGivenUp) {
  TwoNodes w({4});
  w.On(0);
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(w.Cancelled(w.job));
    w.After(10);
    w.On(0);
  }
  EXPECT_TRUE(w.Cancelled(w.job));
}

TEST(LifecycleOnClusters, ARestartedWorkerOnAFollowingNodeLosesNothing) {
  TwoNodes w({4});
  w.On(0);
  const std::string token = w.On(1).attempts(0).token();
  w.On(0, {World::Running(token)});
  w.On(1, {World::Running(token)});
  const auto desired = w.Sync(w.job, {}, "another life", false, 1);
  ASSERT_EQ(desired.attempts_size(), 1);
  EXPECT_EQ(desired.attempts(0).token(), token);
}

TEST(LifecycleOnClusters, AJobTheSchedulerForgotIsNotOverWhileItsWorkersSpeak) {
  OneRun w;
  w.Job(w.job, JobState::kUnknown);
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kRunning);
  w.now += 31'000'000;
  w.Job(w.job, JobState::kUnknown);
  EXPECT_EQ(w.study(w.id).runs[0].cause, db::Cause::kWorkerLost);
}

TEST(LifecycleOnClusters, ARunThatCouldNotEndInTimeIsLeftToTheNextAllocation) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}, 3));
  const std::string job = w.AskedFor();
  w.ends_at = absl::FromUnixMicros(w.now) + absl::Minutes(10);
  w.Job(job, JobState::kRunning);
  auto desired = w.Sync(job);
  for (int run = 0; run < 2; ++run) {
    ASSERT_EQ(desired.attempts_size(), 1) << run;
    for (int i = 0; i < 12; ++i) {  // four minutes
      w.After(20);
      w.Sync(job, {World::Running(desired.attempts(0).token())});
    }
    desired = w.Finish(job, desired);
  }
  EXPECT_TRUE(desired.terminate());
  EXPECT_EQ(w.run_state(id, 2), db::RunState::kQueued);
  EXPECT_NE(w.AskedFor(), "");
}

TEST(LifecycleOnClusters, WhyAnInterruptedAttemptEndedIsForTheSchedulerToSay) {
  for (const bool leaving : {false, true}) {  // the signal may reach either of the two first
    OneRun w;
    auto ended =
        World::Ended(w.token, 143, leaving ? v1::Attempt::CAUSE_UNSPECIFIED : v1::Attempt::RANK_KILLED);
    ended.set_stopped(leaving);
    w.Sync(w.job, {ended}, "life-1", leaving);
    w.Job(w.job, JobState::kPreempted, "preempted by job 7");
    EXPECT_EQ(w.study(w.id).runs[0].cause, db::Cause::kPreempted);
    EXPECT_THAT(w.study(w.id).runs[0].message, HasSubstr("preempted by job 7"));
    EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kQueued);
  }
}

TEST(LifecycleOnClusters, AnInterruptedAttemptIsJudgedByItselfWhenTheSchedulerStaysSilent) {
  OneRun w;
  w.Sync(w.job, {World::Ended(w.token, 137, v1::Attempt::RANK_KILLED)});
  w.After(11);
  EXPECT_EQ(w.study(w.id).runs[0].cause, db::Cause::kRankKilled);
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kQueued);
}

TEST(LifecycleOnClusters, WorkersThatLeaveWhenTheirTimeIsUpMeanATimeout) {
  OneRun w;
  w.ends_at = absl::FromUnixMicros(w.now) + absl::Minutes(10);
  w.Job(w.job, JobState::kRunning);
  w.now += 545'000'000;
  auto ended = World::Ended(w.token, 143);
  ended.set_stopped(true);
  w.Sync(w.job, {ended}, "life-1", true);
  w.Job(w.job, JobState::kCompleted);
  EXPECT_EQ(w.study(w.id).runs[0].cause, db::Cause::kTimeout);
  EXPECT_THAT(w.study(w.id).runs[0].message,
              HasSubstr("its time limit of 1:00:00 was reached; raise resources.time"));
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kFailed) << "a new allocation would not give it more time";
}

TEST(LifecycleOnClusters, AJobThatStartsAgainOnOtherNodesGetsAttemptsOnThese) {
  TwoNodes w({4}, 2);
  w.On(0);
  const std::string first = w.On(1).attempts(0).token();
  w.On(0, {World::Running(first)});
  const auto again = [&](const std::string& name, int node) {
    v1::SynchronizeRequest request;
    request.set_node(name);
    request.set_node_index(node);
    request.set_instance("second-" + name);
    EXPECT_TRUE(w.lifecycle.Observe(w.job, request, w.now, w.fx).ok());
    return w.lifecycle.Desired(*w.state.allocations.begin()->second, node);
  };
  EXPECT_EQ(again("node-5", 0).attempts_size(), 0) << "the other node has not reported";
  const auto desired = again("node-6", 1);
  ASSERT_EQ(desired.attempts_size(), 1);
  EXPECT_NE(desired.attempts(0).token(), first);
  EXPECT_THAT(desired.attempts(0).nodes(), testing::ElementsAre("node-5", "node-6"));
  v1::SynchronizeRequest late;
  late.set_instance("life-of-0");
  EXPECT_TRUE(absl::IsUnauthenticated(w.lifecycle.Observe(w.job, late, w.now, w.fx)))
      << "a report of the process that was replaced";
  EXPECT_EQ(w.state.attempts.size(), 1u);
}

TEST(LifecycleOnClusters, AnAttemptThatNobodyHasReportedEndsWhenItsJobStartsAgainOnOtherNodes) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  const std::string token = w.Sync(job).attempts(0).token();
  v1::SynchronizeRequest request;
  request.set_node("node-7");
  request.set_instance("life-2");
  EXPECT_TRUE(w.lifecycle.Observe(job, request, w.now, w.fx).ok());
  w.After(1);
  const auto desired = w.lifecycle.Desired(*w.state.allocations.begin()->second, 0);
  ASSERT_EQ(desired.attempts_size(), 1);
  EXPECT_NE(desired.attempts(0).token(), token);
  EXPECT_EQ(desired.attempts(0).nodes(0), "node-7");
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kRunning);
}

TEST(LifecycleOnClusters, AnAllocationThatCannotStartRanksIsHandedBackForAnotherOne) {
  OneRun w;
  const auto after = w.Sync(w.job, {World::Ended(w.token, 1, v1::Attempt::BOOT_FAIL)});
  EXPECT_TRUE(after.terminate());
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kQueued);
  w.After(1);
  const std::string other = w.AskedFor();
  EXPECT_NE(other, "");
  EXPECT_NE(other, w.job);
}

TEST(LifecycleOnClusters, TheSchedulerIsAskedMoreSeldomWhileNothingIsAboutToHappen) {
  World w;
  EXPECT_TRUE(w.lifecycle.JobsToPoll().empty());
  w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  EXPECT_TRUE(w.lifecycle.JobsChange()) << "it waits to start";
  const auto desired = w.Sync(job);
  EXPECT_FALSE(w.lifecycle.JobsChange()) << "it runs, and its worker reports every change";
  w.Finish(job, desired);
  EXPECT_TRUE(w.lifecycle.JobsChange()) << "it is being released";
}

}  // namespace
}  // namespace scalelab::server
