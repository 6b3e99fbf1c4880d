// Tests of holds, priorities, drain mode, limits and charges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/accounting.h"
#include "server/core/explain.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using JobState = JobStatus::State;

std::string WhyOf(const World& w, int64_t id) {
  return ExplainStudy(w.state, w.study(id), w.now).front().message();
}

std::vector<int64_t> QueueOfStudies(const World& w) {
  std::vector<int64_t> ids;
  for (const QueueEntry& entry : ListQueue(w.state, w.now, 100)) ids.push_back(entry.study->row.id);
  return ids;
}

void SetLimit(World& w, std::optional<double> LimitRule::*limit, double value) {
  Policy policy;
  LimitRule rule;
  rule.*limit = value;
  policy.limits.rules = {rule};
  w.lifecycle.Configure(policy, 30'000'000);
}

v1::StudySpec PerRun(int runs) {
  v1::StudySpec spec = World::Spec({1}, runs);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  return spec;
}

TEST(Hold, NoAttemptBeginsAndTheLiveOneGoesOn) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}, 2));
  const std::string job = w.AskedFor();
  w.Job(job, JobState::kRunning);
  const auto desired = w.Sync(job);
  w.fx = {};
  ASSERT_TRUE(w.lifecycle.HoldStudy(id, w.now, w.fx).ok());
  ASSERT_EQ(w.fx.batch.studies.size(), 1u);
  EXPECT_TRUE(w.fx.batch.studies[0].held);
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kRunning);
  EXPECT_FALSE(w.Sync(job, {World::Running(desired.attempts(0).token())}).terminate());
  EXPECT_TRUE(w.Finish(job, desired).terminate()) << "nothing else begins on its allocation";
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kSucceeded);
  EXPECT_EQ(w.run_state(id, 1), db::RunState::kQueued);
  w.Job(job, JobState::kCompleted);
  w.After(1000);
  EXPECT_EQ(w.AskedFor(), "");
  EXPECT_THAT(WhyOf(w, id), HasSubstr("its study is held; `scalelab study release 1` ends that"));
  ASSERT_TRUE(w.lifecycle.ReleaseStudy(id, w.now, w.fx).ok());
  EXPECT_NE(w.AskedFor(), "");
}

TEST(Hold, APendingJobIsCancelledAndIsNoFailure) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  for (int i = 0; i < 20; ++i) {
    const std::string job = w.AskedFor();
    ASSERT_NE(job, "") << i;
    ASSERT_TRUE(w.lifecycle.HoldStudy(id, w.now, w.fx).ok());
    EXPECT_TRUE(w.Cancelled(job));
    w.lifecycle.JobSubmitted(job, "job-1", w.now, w.fx);
    ASSERT_TRUE(w.lifecycle.ReleaseStudy(id, w.now, w.fx).ok());
    w.Job(job, JobState::kCancelled);
  }
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kQueued);
}

TEST(Hold, AFinalStudyIsRefused) {
  OneRun w;
  w.Finish(w.job, w.desired);
  EXPECT_TRUE(absl::IsFailedPrecondition(w.lifecycle.HoldStudy(w.id, w.now, w.fx)));
  EXPECT_TRUE(absl::IsFailedPrecondition(w.lifecycle.HoldStudy(99, w.now, w.fx)));
  EXPECT_TRUE(w.lifecycle.ReleaseStudy(w.id, w.now, w.fx).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(w.lifecycle.SetPriority(w.id, 1, w.now, w.fx)));
}

TEST(Priority, ChangesTheOrderAtOnce) {
  World w;
  for (int i = 0; i < 4; ++i) w.Submit(World::Spec({1}));
  w.lifecycle.Plan(w.now, w.fx);
  const int64_t a = w.Submit(World::Spec({1})), b = w.Submit(World::Spec({1})),
                c = w.Submit(World::Spec({1}));
  EXPECT_THAT(QueueOfStudies(w), ElementsAre(a, b, c));
  w.fx = {};
  ASSERT_TRUE(w.lifecycle.SetPriority(c, 5, w.now, w.fx).ok());
  EXPECT_EQ(w.fx.batch.studies.at(0).priority, 5);
  EXPECT_THAT(QueueOfStudies(w), ElementsAre(c, a, b));
  ASSERT_TRUE(w.lifecycle.SetPriority(a, -1, w.now, w.fx).ok());
  EXPECT_THAT(QueueOfStudies(w), ElementsAre(c, b, a));
  w.Job(w.state.allocations.begin()->second->row.token, JobState::kRunning);
  w.lifecycle.Plan(w.now, w.fx);
  EXPECT_EQ(w.study(c).allocations.size(), 1u);
}

TEST(Drain, NoAttemptBeginsAndNoJobIsSubmitted) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}, 2));
  const std::string job = w.AskedFor();
  w.Job(job, JobState::kRunning);
  const auto desired = w.Sync(job);
  const int64_t pending = w.Submit(World::Spec({1}));
  const std::string pending_job = w.AskedFor();
  w.lifecycle.JobSubmitted(pending_job, "job-2", w.now, w.fx);
  w.fx = {};
  EXPECT_EQ(w.lifecycle.SetDrain(true, "new switch", w.now, w.fx), 1);
  ASSERT_TRUE(w.fx.batch.drain.has_value());
  EXPECT_TRUE(w.fx.batch.drain->on);
  EXPECT_TRUE(w.Cancelled(pending_job));
  EXPECT_FALSE(w.Cancelled(job));
  const int64_t later = w.Submit(World::Spec({1}));
  EXPECT_TRUE(w.Finish(job, desired).terminate());
  w.Job(job, JobState::kCompleted);
  w.Job(pending_job, JobState::kUnknown);
  w.After(1000);
  EXPECT_EQ(w.AskedFor(), "");
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kSucceeded);
  EXPECT_EQ(w.run_state(id, 1), db::RunState::kQueued);
  for (const int64_t study : {id, pending, later})
    EXPECT_THAT(WhyOf(w, study), HasSubstr("the service is being drained: new switch"));
  EXPECT_THAT(QueueOfStudies(w), ElementsAre(id, pending, later));
  EXPECT_EQ(w.lifecycle.SetDrain(false, "", w.now, w.fx), 0);
  w.lifecycle.Plan(w.now, w.fx);
  EXPECT_EQ(w.fx.submit.size(), 3u);
}

TEST(Drain, AJobThatStartsGetsNoAttempt) {
  World w;
  w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  w.lifecycle.SetDrain(true, "", w.now, w.fx);
  w.Job(job, JobState::kRunning);  // the cancel came too late
  EXPECT_EQ(w.Sync(job).attempts_size(), 0);
  EXPECT_EQ(w.state.attempts.size(), 0u);
}

TEST(Limit, OfRunningAllocationsCountsThoseThatMayStart) {
  World w;
  SetLimit(w, &LimitRule::running_allocations, 3);
  const int64_t id = w.Submit(PerRun(6));
  w.lifecycle.Plan(w.now, w.fx);
  EXPECT_EQ(w.fx.submit.size(), 3u);
  const std::string job = w.fx.submit[0].token;
  w.Job(job, JobState::kRunning);
  w.lifecycle.Plan(w.now, w.fx);
  EXPECT_EQ(w.fx.submit.size(), 3u);
  EXPECT_THAT(
      ListQueue(w.state, w.now, 9).at(0).reason,
      HasSubstr(
          "the limit running_allocations of ann in the default partition is reached: 1 run and 2 wait"));
  const int64_t others = w.Submit(World::Spec({1}), "", "bob");
  w.lifecycle.Plan(w.now, w.fx);
  EXPECT_EQ(w.study(others).allocations.size(), 1u);
  w.Job(job, JobState::kFailed);
  w.After(100);
  EXPECT_EQ(w.study(id).allocations.size(), 3u);
}

TEST(Limit, OfRunsIsReachedByAttemptsAndByAllocationsWithoutOne) {
  World w;
  SetLimit(w, &LimitRule::runs, 2);
  w.Submit(World::Spec({1}));
  w.Submit(World::Spec({1}));
  const int64_t third = w.Submit(World::Spec({1}));
  w.lifecycle.Plan(w.now, w.fx);
  ASSERT_EQ(w.fx.submit.size(), 2u);
  const std::string job = w.fx.submit[0].token;
  w.Job(job, JobState::kRunning);
  const auto desired = w.Sync(job);
  w.lifecycle.Plan(w.now, w.fx);
  EXPECT_EQ(w.fx.submit.size(), 2u);
  EXPECT_THAT(WhyOf(w, third),
              HasSubstr("the limit runs of ann in the default partition is reached: 2 of 2 runs"));
  w.Finish(job, desired);
  w.lifecycle.Plan(w.now, w.fx);
  EXPECT_EQ(w.study(third).allocations.size(), 1u);
}

TEST(Limit, OfGpuHoursCountsTheLastSevenDays) {
  World w;
  SetLimit(w, &LimitRule::gpu_hours_per_week, 10);
  v1::StudySpec spec = World::Spec({4}, 2);
  spec.mutable_resources()->set_gpus_per_rank(1);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  spec.mutable_limits()->set_concurrent_allocations(1);
  const int64_t id = w.Submit(spec);
  const std::string job = w.AskedFor();
  w.Job(job, JobState::kRunning);
  const auto desired = w.Sync(job);
  for (int i = 0; i < 3 * 3600 / 20; ++i) {
    w.After(20);
    w.Sync(job, {World::Running(desired.attempts(0).token())});
  }
  w.fx.submit.clear();
  w.Finish(job, desired);
  w.Job(job, JobState::kCompleted);
  w.After(10);
  EXPECT_EQ(w.AskedFor(), "") << "12 of 10 GPU-hours were used";
  EXPECT_THAT(WhyOf(w, id),
              HasSubstr("the limit gpu_hours_per_week of ann in the default partition is reached: 12 of 10"));
  w.After(7 * 24 * 3600);
  EXPECT_NE(w.AskedFor(), "");
}

TEST(Limit, OfAPartitionLetsTheUserWithTheSmallestShareGoFirst) {
  World w;
  Policy policy;
  policy.limits.partition_pending_allocations = 1;
  w.lifecycle.Configure(policy, 30'000'000);
  w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  w.Submit(World::Spec({1}));
  const int64_t bobs = w.Submit(World::Spec({1}), "", "bob");
  EXPECT_EQ(w.AskedFor(), "");
  EXPECT_THAT(WhyOf(w, bobs),
              HasSubstr("partition_pending_allocations of the default partition is reached: 1 of 1"));
  w.Job(job, JobState::kRunning);
  w.Sync(job);
  w.now += 1'000'000;
  w.lifecycle.Plan(w.now, w.fx);
  EXPECT_EQ(w.study(bobs).allocations.size(), 1u);
}

TEST(Charge, UsageGrowsWhileTheAllocationIsHeld) {
  World w;
  v1::StudySpec spec = World::Spec({4});
  spec.mutable_resources()->set_ranks_per_node(2);
  const int64_t id = w.Submit(spec);
  const std::string job = w.AskedFor();
  w.After(500);
  EXPECT_EQ(CurrentUse(w.state, w.now).UsageOf("ann").node_seconds, 0) << "a pending job is free";
  w.Job(job, JobState::kRunning);
  w.now += 100'000'000;
  EXPECT_DOUBLE_EQ(CurrentUse(w.state, w.now).UsageOf("ann").node_seconds, 200);
  EXPECT_NEAR(CurrentUse(w.state, w.now).Share("ann"), 200, 0.1);
  w.fx = {};
  w.Job(job, JobState::kFailed);
  EXPECT_DOUBLE_EQ(CurrentUse(w.state, w.now).UsageOf("ann").node_seconds, 200);
  ASSERT_EQ(w.fx.batch.usage.size(), 1u);
  EXPECT_DOUBLE_EQ(w.fx.batch.usage[0].node_seconds, 200);
  EXPECT_EQ(w.fx.batch.allocations.back().held, 100'000'000);
  w.now += 100'000'000;
  EXPECT_DOUBLE_EQ(CurrentUse(w.state, w.now).UsageOf("ann").node_seconds, 200);
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kQueued);
}

TEST(Charge, TheWeightChoosesNodesOrGpus) {
  World w;
  v1::StudySpec spec = World::Spec({2});
  spec.mutable_resources()->set_gpus_per_rank(3);
  w.Submit(spec);
  w.Job(w.AskedFor(), JobState::kRunning);
  w.now += 10'000'000;
  EXPECT_NEAR(CurrentUse(w.state, w.now).Share("ann"), 10, 0.01);
  Policy policy;
  policy.fair_share.weight = FairShare::Weight::kGpus;
  w.lifecycle.Configure(policy, 30'000'000);
  EXPECT_NEAR(CurrentUse(w.state, w.now).Share("ann"), 60, 0.01);
}

}  // namespace
}  // namespace scalelab::server
