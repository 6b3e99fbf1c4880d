// Tests of charges, and of wall clocks that are set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/accounting.h"
#include "server/core/lifecycle.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using JobState = JobStatus::State;
using testing::HasSubstr;

TEST(Lifecycle, TheOwnerIsChargedForTheWholeAllocationWhileItIsHeld) {
  World w;
  v1::StudySpec spec = World::Spec({4, 1});
  spec.mutable_resources()->set_ranks_per_node(1);
  w.Submit(spec);
  const std::string job = w.AskedFor();
  w.Job(job, JobState::kRunning);
  for (int i = 0; i < 10; ++i) {
    w.After(10);
    w.Sync(job);
  }
  EXPECT_NEAR(CurrentUse(w.state, w.now).Share("ann"), 4 * 100, 1) << "also before the end";
  w.Job(job, JobState::kNodeFail);
  w.After(100);
  EXPECT_NEAR(CurrentUse(w.state, w.now).Share("ann"), 4 * 100, 1);
}

TEST(Lifecycle, AStudyThatHasUsedItsGpuHoursEndsAndSaysWhy) {
  World w;
  auto spec = World::Spec({2}, 3);
  spec.mutable_resources()->set_gpus_per_rank(1);
  spec.mutable_limits()->set_gpu_hours(1);
  const int64_t id = w.Submit(spec);
  const std::string job = w.AskedFor();
  w.Job(job, JobState::kRunning);
  const auto desired = w.Sync(job);
  const std::string token = desired.attempts(0).token();
  for (int i = 0; i < 89; ++i) {
    w.After(20);
    w.Sync(job, {World::Running(token)});
  }
  EXPECT_EQ(w.study(id).queued.size(), 2u);
  w.After(21);
  w.After(1);
  EXPECT_EQ(w.study(id).queued.size(), 0u);
  w.Sync(job, {World::Ended(token, 143)});
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kCancelled);
  EXPECT_EQ(w.study(id).runs[0].message,
            "the study has used 1 GPU-hours, limits.gpu_hours is 1; submit the rest as another study");
  EXPECT_EQ(w.run_state(id, 1), db::RunState::kFailed);
}

TEST(Lifecycle, AClockThatIsSetForwardsIsNotCharged) {
  World w;
  auto spec = World::Spec({2});
  spec.mutable_resources()->set_gpus_per_rank(1);
  spec.mutable_limits()->set_gpu_hours(1);
  const int64_t id = w.Submit(spec);
  const std::string job = w.AskedFor();
  w.Job(job, JobState::kRunning);
  w.Sync(job);
  w.After(10);
  const db::Micros hours = 5 * 3'600'000'000;
  w.now += hours;
  w.lifecycle.MoveTimeouts(hours, hours);
  w.After(1);
  EXPECT_NEAR(CurrentUse(w.state, w.now).UsageOf("ann").node_seconds, 11, 0.1);
  EXPECT_NEAR(GpuSecondsOf(w.state, w.study(id), w.now), 2 * 11, 0.1);
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kRunning);
}

TEST(Lifecycle, AClockThatIsSetForwardsDoesNotMakeARunLong) {
  enum class End { kReported, kNotReported, kTimeLimit };
  for (const End end : {End::kReported, End::kNotReported, End::kTimeLimit}) {
    World w;
    const int64_t id = w.Submit(World::Spec({1}, 3));
    const std::string job = w.AskedFor();
    w.Job(job, JobState::kRunning);
    const auto desired = w.Sync(job);
    const std::string token = desired.attempts(0).token();
    w.Sync(job, {World::Running(token)});
    w.After(10);
    const db::Micros hours = 5 * 3'600'000'000;
    w.now += hours;
    w.lifecycle.MoveTimeouts(hours, hours);
    w.After(10);
    w.Report(token, 0, 0, 10, true);
    auto ended = World::Ended(token);
    if (end == End::kReported) ended.set_run_seconds(19);
    if (end == End::kTimeLimit) {
      w.Job(job, JobState::kTimeout);
    } else {
      w.Sync(job, {ended});
      const db::RunRow& run = w.study(id).runs[0];
      EXPECT_NEAR(1e-6 * static_cast<double>(run.finished - run.started), 20, 0.1) << "used after a restart";
    }
    EXPECT_NEAR(1e-6 * static_cast<double>(w.study(id).longest_of_all), 20, 1.1) << static_cast<int>(end);
  }
}

// A study waits for an allocation although its owner may have no more pending jobs; its last one has failed.
TEST(Lifecycle, AClockThatIsSetBackMovesTheNextTryOfAWaitingStudy) {
  for (const bool known : {false, true}) {  // whether the coordinator detects the change of the clock
    World w;
    const int64_t id = w.Submit(World::Spec({1}));
    const std::string first = w.AskedFor();
    w.Job(first, JobStatus::State::kFailed);
    std::vector<std::string> pending;
    for (int i = 0; i < 4; ++i) {
      w.Submit(World::Spec({1}));
      pending.push_back(w.AskedFor());
    }
    w.After(10);
    EXPECT_TRUE(w.state.waiting.Contains(id));
    const db::Micros back = known ? 3600'000'000 : 9'500'000;
    w.now -= back;
    if (known) w.lifecycle.MoveTimeouts(-back);
    w.Job(pending[0], JobStatus::State::kRunning);
    EXPECT_EQ(w.AskedFor() != "", known) << "its next try is due";
    w.After(10);
    EXPECT_EQ(w.AskedFor() != "", !known);
  }
}

TEST(Lifecycle, AClockThatIsSetBackLosesNoCharge) {
  World w;
  auto spec = World::Spec({2});
  spec.mutable_resources()->set_gpus_per_rank(1);
  const int64_t id = w.Submit(spec);
  const std::string job = w.AskedFor();
  w.Job(job, JobState::kRunning);
  w.Sync(job);
  w.After(10);
  const db::Micros back = 600'000'000;
  w.now -= back;
  w.lifecycle.MoveTimeouts(-back, -back);
  w.After(1);
  EXPECT_NEAR(CurrentUse(w.state, w.now).UsageOf("ann").node_seconds, 11, 0.1);
  EXPECT_NEAR(GpuSecondsOf(w.state, w.study(id), w.now), 2 * 11, 0.1);
}

}  // namespace
}  // namespace scalelab::server
