// Decisions about studies with several allocations at the same time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "server/core/lifecycle.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using JobState = JobStatus::State;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// A study of two cells, so that a block has two runs.
struct Blocks : World {
  Blocks(int repeats, int allocations, const std::function<void(v1::StudySpec&)>& more = {}) {
    v1::StudySpec spec = Spec({1, 2}, repeats);
    if (allocations > 0) spec.mutable_limits()->set_concurrent_allocations(allocations);
    if (more) more(spec);
    id = Submit(spec);
  }
  // Returns the jobs that were submitted since the last call.
  std::vector<JobRequest> Requests() {
    lifecycle.Plan(now, fx);
    return std::exchange(fx.submit, {});
  }
  std::vector<std::string> Jobs() {
    std::vector<std::string> tokens;
    for (const JobRequest& request : Requests()) tokens.push_back(request.token);
    return tokens;
  }
  // Starts a job with a worker on each of its nodes; returns the desired state of the first one.
  v1::SynchronizeResponse Start(const std::string& job, int nodes = 1) {
    Job(job, JobState::kRunning);
    for (int node = nodes - 1; node > 0; --node) Sync(job, {}, absl::StrCat("life-", node), false, node);
    return Sync(job);
  }
  // Returns "block/ranks" of the attempt that a worker must run, "-" if there is none, "end" if it must exit.
  static std::string Serves(const v1::SynchronizeResponse& desired) {
    if (desired.attempts_size() == 1)
      return absl::StrCat(desired.attempts(0).spec().seed(), "/", desired.attempts(0).spec().ranks());
    return desired.terminate() ? "end" : "-";
  }
  int64_t id;
};

TEST(Blocks, AStudyGetsOneAllocationByDefaultBecauseRunsDisturbEachOther) {
  Blocks w(3, 0);
  EXPECT_THAT(w.Jobs(), SizeIs(1));
}

TEST(Blocks, AStudyGetsAsManyAllocationsAsItMayHaveAndNoMoreThanBlocks) {
  EXPECT_THAT(Blocks(3, 2).Jobs(), SizeIs(2));
  EXPECT_THAT(Blocks(3, 3).Jobs(), SizeIs(3));
  EXPECT_THAT(Blocks(3, 4).Jobs(), SizeIs(3));
  EXPECT_THAT(Blocks(1, 4).Jobs(), SizeIs(1));
}

TEST(Blocks, EachAllocationServesWholeBlocks) {
  Blocks w(3, 2);
  const auto jobs = w.Jobs();
  auto first = w.Start(jobs[0]), second = w.Start(jobs[1]);
  EXPECT_EQ(Blocks::Serves(first), "0/1");
  EXPECT_EQ(Blocks::Serves(second), "1/1");
  second = w.Finish(jobs[1], second);
  EXPECT_EQ(Blocks::Serves(second), "1/2");
  second = w.Finish(jobs[1], second);
  EXPECT_EQ(Blocks::Serves(second), "2/1") << "block 0 belongs to the first allocation";
  first = w.Finish(jobs[0], first);
  EXPECT_EQ(Blocks::Serves(first), "0/2");
  EXPECT_EQ(Blocks::Serves(w.Finish(jobs[0], first)), "end") << "block 2 belongs to the second allocation";
  EXPECT_EQ(w.state.allocation(1)->row.reason, "other allocations serve the queued runs");
  EXPECT_THAT(w.Jobs(), IsEmpty());
  second = w.Finish(jobs[1], second);
  EXPECT_EQ(Blocks::Serves(second), "2/2");
  w.Finish(jobs[1], second);
  EXPECT_EQ(w.study(w.id).row.state, db::StudyState::kSucceeded);
}

TEST(Blocks, ACompletionVisitsNoOtherAllocation) {
  for (const int most : {50, 100}) {
    Blocks w(60, most);
    Policy policy;
    LimitRule rule;
    rule.pending_allocations = LimitSet::kNone;
    policy.limits.rules = {rule};
    w.lifecycle.Configure(policy, 30'000'000);
    const auto jobs = w.Jobs();
    ASSERT_THAT(jobs, SizeIs(std::min(most, 60)));
    std::vector<v1::SynchronizeResponse> desired;
    for (const std::string& job : jobs) desired.push_back(w.Start(job));
    auto others = TakeOthers(w.state, jobs[7]);
    desired[7] = w.Finish(jobs[7], desired[7]);
    EXPECT_EQ(Blocks::Serves(desired[7]), "7/2");
    EXPECT_EQ(Blocks::Serves(w.Finish(jobs[7], desired[7])), most == 50 ? "50/1" : "end");
    w.state.allocations.merge(others);
  }
}

TEST(Blocks, ARunThatIsTriedAgainGoesToTheNextAllocationOfItsBlock) {
  Blocks w(3, 2);
  const auto jobs = w.Jobs();
  const auto first = w.Start(jobs[0]);
  w.Start(jobs[1]);
  EXPECT_EQ(
      Blocks::Serves(w.Sync(jobs[0], {World::Ended(first.attempts(0).token(), 0, v1::Attempt::BOOT_FAIL)})),
      "end");
  w.After(1);
  const auto next = w.Jobs();
  ASSERT_THAT(next, SizeIs(1));
  EXPECT_EQ(Blocks::Serves(w.Start(next[0])), "0/1");
}

TEST(Blocks, TheRestOfABlockGoesBackWhenItsAllocationEnds) {
  Blocks w(3, 2);
  const auto jobs = w.Jobs();
  const auto first = w.Start(jobs[0]);
  auto second = w.Start(jobs[1]);
  EXPECT_EQ(Blocks::Serves(w.Finish(jobs[0], first)), "0/2");
  w.Job(jobs[0], JobState::kNodeFail);
  w.After(1);
  const auto next = w.Jobs();
  ASSERT_THAT(next, SizeIs(1));
  second = w.Finish(jobs[1], second);
  EXPECT_EQ(Blocks::Serves(second), "1/2") << "an allocation finishes its own block first";
  EXPECT_EQ(Blocks::Serves(w.Start(next[0])), "0/2");
  EXPECT_EQ(Blocks::Serves(w.Finish(jobs[1], second)), "2/1");
}

TEST(Blocks, AnAllocationThatIsCancelledKeepsItsPlaceAndItsBlockUntilItHasEnded) {
  for (const int most : {1, 2}) {
    Blocks w(2, most);
    const auto jobs = w.Jobs();
    w.Start(jobs[0]);
    v1::SynchronizeResponse other;
    if (most == 2) other = w.Start(jobs[1]);
    for (int i = 0; i < 4; ++i) {  // the worker of the first one is silent
      w.After(10);
      if (most == 2) w.Sync(jobs[1], {World::Running(other.attempts(0).token())});
    }
    ASSERT_TRUE(w.Cancelled(jobs[0]));
    EXPECT_THAT(w.Jobs(), IsEmpty()) << "its ranks may still be alive";
    if (most == 2) {
      other = w.Finish(jobs[1], other);
      EXPECT_EQ(Blocks::Serves(w.Finish(jobs[1], other)), "end");
    }
    w.Job(jobs[0], JobState::kCancelled);
    w.After(1);
    const auto next = w.Jobs();
    ASSERT_THAT(next, SizeIs(1)) << most;
    EXPECT_EQ(Blocks::Serves(w.Start(next[0])), "0/1");
  }
}

TEST(Blocks, PendingJobsOfAUserStayLimited) {
  Blocks w(8, 8);
  const auto jobs = w.Jobs();
  EXPECT_THAT(jobs, SizeIs(4));
  w.Start(jobs[0]);
  EXPECT_THAT(w.Jobs(), SizeIs(1));
}

TEST(Blocks, AllocationsThatFailDoNotFailTheStudyWhileAnotherOneServes) {
  Blocks w(20, 2);
  const auto jobs = w.Jobs();
  auto serving = w.Start(jobs[0]);
  w.Job(jobs[1], JobState::kFailed);
  std::vector<db::Micros> times;
  for (int second = 1; w.study(w.id).queued.size() > 3; ++second) {
    w.After(1);
    for (const std::string& job : w.Jobs()) {
      times.push_back(w.now);
      w.Job(job, JobState::kFailed);
    }
    // A run takes a minute.
    serving = second % 60 == 0 ? w.Finish(jobs[0], serving)
                               : w.Sync(jobs[0], {World::Running(serving.attempts(0).token())});
    ASSERT_LT(second, 3600);
    ASSERT_EQ(serving.attempts_size(), 1);
  }
  EXPECT_GT(times.size(), 10u);
  EXPECT_LT(times.size(), 30u) << "attempts of the other allocation must not reset the backoff";
  for (int run = 0; run < 3; ++run) serving = w.Finish(jobs[0], serving);
  EXPECT_EQ(Blocks::Serves(serving), "19/2") << "one allocation serves all blocks";
  EXPECT_EQ(w.study(w.id).counts[static_cast<int>(db::RunState::kFailed)], 0);
}

TEST(Blocks, ARefusedJobDoesNotFailTheStudyWhileAnotherOneServes) {
  Blocks w(3, 2);
  const auto jobs = w.Jobs();
  w.Start(jobs[0]);
  w.lifecycle.JobSubmitted(jobs[1], absl::InvalidArgumentError("too many nodes"), w.now, w.fx);
  EXPECT_EQ(w.study(w.id).queued.size(), 5u);
  EXPECT_FALSE(w.study(w.id).failed_allocations.empty());
}

TEST(Blocks, CancellingAStudyStopsAllItsAllocations) {
  Blocks w(3, 3);
  const auto jobs = w.Jobs();
  const auto running = w.Start(jobs[0]);
  w.Job(jobs[1], JobState::kRunning);
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  EXPECT_TRUE(w.Sync(jobs[0], {World::Running(running.attempts(0).token())}).attempts(0).stop());
  EXPECT_EQ(Blocks::Serves(w.Sync(jobs[1])), "end");
  EXPECT_TRUE(w.Cancelled(jobs[2]));
}

TEST(Blocks, APauseReleasesAllAllocations) {
  Blocks w(8, 2, [](v1::StudySpec& spec) { spec.mutable_retry()->set_max(0); });
  const auto jobs = w.Jobs();
  v1::SynchronizeResponse desired[] = {w.Start(jobs[0]), w.Start(jobs[1])};
  for (int failure = 0; failure < 5; ++failure) {
    const int i = failure % 2;
    desired[i] = w.Sync(jobs[i], {World::Ended(desired[i].attempts(0).token(), 1)});
  }
  ASSERT_NE(w.study(w.id).row.pause_reason, "");
  EXPECT_EQ(Blocks::Serves(desired[0]), "end");
  EXPECT_EQ(Blocks::Serves(w.Finish(jobs[1], desired[1])), "end");
  EXPECT_THAT(w.Jobs(), IsEmpty());
  ASSERT_TRUE(w.lifecycle.ResumeStudy(w.id, w.now, w.fx).ok());
  EXPECT_THAT(w.Jobs(), SizeIs(2));
}

TEST(Blocks, TheGpuHoursOfAllAllocationsCount) {
  Blocks w(2, 2, [](v1::StudySpec& spec) {
    spec.mutable_resources()->set_gpus_per_rank(1);
    spec.mutable_limits()->set_gpu_hours(1);  // two allocations of two GPUs use it up in a quarter of an hour
  });
  const auto jobs = w.Jobs();
  const v1::SynchronizeResponse desired[] = {w.Start(jobs[0]), w.Start(jobs[1])};
  int seconds = 0;
  for (; seconds < 3600 && w.study(w.id).queued.size() == 2; seconds += 10) {
    w.After(10);
    for (int i : {0, 1}) w.Sync(jobs[i], {World::Running(desired[i].attempts(0).token())});
  }
  EXPECT_NEAR(seconds, 900, 20);
  for (int i : {0, 1})
    EXPECT_TRUE(w.Sync(jobs[i], {World::Running(desired[i].attempts(0).token())}).attempts(0).stop());
}

// Lets a worker run for some minutes.
void RunFor(Blocks& w, const std::string& job, const std::string& token, int minutes) {
  for (int i = 0; i < 3 * minutes; ++i) {
    w.After(20);
    w.Sync(job, {World::Running(token)});
  }
}

TEST(Blocks, AnAllocationDoesNotBeginABlockThatItCannotFinish) {
  Blocks w(3, 2);
  const auto jobs = w.Jobs();
  w.ends_at = absl::FromUnixMicros(w.now) + absl::Minutes(17);
  auto first = w.Start(jobs[0]);
  for (int run = 0; run < 2; ++run) {
    RunFor(w, jobs[0], first.attempts(0).token(), 4);
    first = w.Finish(jobs[0], first);
  }
  // In the remaining nine minutes, one more run would fit, but a block of two runs does not.
  EXPECT_EQ(Blocks::Serves(first), "end");
  EXPECT_EQ(w.state.allocation(1)->row.reason, "no queued run would end before its time limit");
}

// Cells of one, two and four nodes.
void ThreeSizes(v1::StudySpec& spec) {
  auto* ranks = spec.mutable_matrix(0);
  ranks->clear_values();
  for (const int n : {4, 8, 16}) ranks->add_values()->set_number_value(n);
  spec.mutable_resources()->set_ranks_per_node(4);
}

std::vector<int> Nodes(const std::vector<JobRequest>& requests) {
  std::vector<int> nodes;
  for (const JobRequest& request : requests) nodes.push_back(request.nodes);
  return nodes;
}

TEST(Blocks, EachNumberOfNodesHasItsOwnAllocationWhenThereMayBeEnough) {
  EXPECT_THAT(Nodes(Blocks(2, 0, ThreeSizes).Requests()), ElementsAre(4));
  EXPECT_THAT(Nodes(Blocks(2, 2, ThreeSizes).Requests()), ElementsAre(4, 4));
  EXPECT_THAT(Nodes(Blocks(2, 3, ThreeSizes).Requests()), ElementsAre(4, 2, 1));
  EXPECT_THAT(Nodes(Blocks(2, 4, ThreeSizes).Requests()), ElementsAre(4, 2, 1, 4));
}

TEST(Blocks, AnAllocationServesTheRunsOfItsSizeOnly) {
  Blocks w(2, 3, ThreeSizes);
  const auto jobs = w.Jobs();
  ASSERT_THAT(jobs, SizeIs(3));
  EXPECT_EQ(Blocks::Serves(w.Start(jobs[0], 4)), "0/16");
  EXPECT_EQ(Blocks::Serves(w.Start(jobs[1], 2)), "0/8");
  auto small = w.Start(jobs[2], 1);
  EXPECT_EQ(Blocks::Serves(small), "0/4");
  small = w.Finish(jobs[2], small);
  EXPECT_EQ(Blocks::Serves(small), "1/4");
  EXPECT_EQ(Blocks::Serves(w.Finish(jobs[2], small)), "end");
  EXPECT_THAT(Nodes(w.Requests()), ElementsAre(4)) << "block 1 has a part of this size that nobody serves";
}

}  // namespace
}  // namespace scalelab::server
