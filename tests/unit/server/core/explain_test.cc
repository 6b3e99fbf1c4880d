// Tests of explain: one test for each kind of reason, then the order of reasons.
#include "server/core/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using v1::Reason;

class ExplainTest : public testing::Test {
 protected:
  std::vector<Reason> Study(int64_t id) { return ExplainStudy(world_.state, world_.study(id), world_.now); }
  std::vector<Reason> Run(int64_t study, int position) {
    return ExplainRun(world_.state, world_.study(study), position, world_.now);
  }
  static std::vector<int> Kinds(const std::vector<Reason>& reasons) {
    std::vector<int> kinds;
    for (const Reason& reason : reasons) kinds.push_back(reason.kind());
    return kinds;
  }
  static db::Micros Micros(const google::protobuf::Timestamp& time) {
    return time.seconds() * 1'000'000 + time.nanos() / 1000;
  }
  std::string RunOf(int64_t study, int position) {
    return absl::StrCat("studies/", study, "/runs/", world_.study(study).runs[position].id);
  }
  // Starts a job of a study.
  std::string Begin(const std::string& job) {
    world_.Job(job, JobStatus::State::kRunning);
    return job;
  }
  // Fills the limit of pending jobs of the user.
  std::vector<std::string> FillTheScheduler(int jobs = 4) {
    std::vector<std::string> asked;
    for (int i = 0; i < jobs; ++i) {
      world_.Submit(World::Spec({1}));
      asked.push_back(world_.AskedFor());
    }
    return asked;
  }

  World world_;
};

TEST_F(ExplainTest, APendingJobShowsTheSchedulersReason) {
  const int64_t id = world_.Submit(World::Spec({1}));
  const db::Micros asked = world_.now;
  const std::string job = world_.AskedFor();
  ASSERT_THAT(Kinds(Study(id)), ElementsAre(Reason::SCHEDULER_PENDING));
  EXPECT_THAT(Study(id)[0].message(), HasSubstr("being submitted to the scheduler"));
  world_.lifecycle.JobSubmitted(job, "4711", world_.now, world_.fx);
  world_.After(60);
  world_.lifecycle.JobsPolled({{job, "4711", JobStatus::State::kPending, "too few idle nodes (Resources)"}},
                              world_.now, world_.now, world_.fx);
  const Reason reason = Run(id, 0).front();
  EXPECT_EQ(reason.kind(), Reason::SCHEDULER_PENDING);
  EXPECT_EQ(reason.message(), "job 4711 waits at the scheduler: too few idle nodes (Resources)");
  EXPECT_EQ(reason.subject(), "allocations/" + job);
  EXPECT_EQ(Micros(reason.since_time()), asked);
  EXPECT_FALSE(reason.has_next_try_time());
}

TEST_F(ExplainTest, APendingJobNamesWhoseJobsRunThere) {
  const int64_t first = world_.Submit(World::Spec({1}));
  Begin(world_.AskedFor());
  const int64_t id = world_.Submit(World::Spec({1}));
  const std::string job = world_.AskedFor();
  world_.lifecycle.JobSubmitted(job, "4711", world_.now, world_.fx);
  world_.lifecycle.JobsPolled({{job, "4711", JobStatus::State::kPending, "Resources"}}, world_.now,
                              world_.now, world_.fx);
  const std::vector<Reason> reasons = Study(id);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::SCHEDULER_PENDING, Reason::BEHIND_STUDY));
  EXPECT_THAT(reasons[1].message(), HasSubstr(absl::StrCat("studies/", first, " (")));
  EXPECT_THAT(reasons[1].message(), HasSubstr("on 1 node"));
  EXPECT_EQ(reasons[1].subject(), absl::StrCat("studies/", first));
}

TEST_F(ExplainTest, ARefusedJobShowsItsNextTry) {
  const int64_t id = world_.Submit(World::Spec({1}));
  const std::string job = world_.AskedFor();
  world_.lifecycle.JobSubmitted(job, absl::ResourceExhaustedError("QOSMaxSubmitJobPerUserLimit"), world_.now,
                                world_.fx);
  Reason reason = Study(id).front();
  EXPECT_EQ(reason.kind(), Reason::SCHEDULER_REFUSED);
  EXPECT_THAT(reason.message(), HasSubstr("QOSMaxSubmitJobPerUserLimit"));
  EXPECT_GT(Micros(reason.next_try_time()), world_.now);
  world_.After(30);  // the next try is in flight
  EXPECT_FALSE(Study(id).front().has_next_try_time());
  world_.lifecycle.JobSubmitted(job, "4711", world_.now, world_.fx);
  reason = Study(id).front();
  EXPECT_EQ(reason.kind(), Reason::SCHEDULER_PENDING);
  EXPECT_THAT(reason.message(), Not(HasSubstr("QOSMaxSubmitJobPerUserLimit")));
}

TEST_F(ExplainTest, ASchedulerThatDoesNotAnswerComesBeforeAllThatWaitsForIt) {
  const int64_t id = world_.Submit(World::Spec({1}));
  world_.AskedFor();
  world_.state.scheduler = {"squeue failed: Unable to contact slurm controller", world_.now - 90'000'000,
                            world_.now + 15'000'000};
  const std::vector<Reason> reasons = Study(id);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::SCHEDULER_AWAY, Reason::SCHEDULER_PENDING));
  EXPECT_THAT(reasons[0].message(), HasSubstr("Unable to contact slurm controller"));
  EXPECT_EQ(Micros(reasons[0].since_time()), world_.now - 90'000'000);
  EXPECT_EQ(Micros(reasons[0].next_try_time()), world_.now + 15'000'000);
  world_.After(20);
  EXPECT_FALSE(Study(id)[0].has_next_try_time()) << "a time that has passed is no next try";
}

TEST_F(ExplainTest, ASchedulerThatIsAwayDoesNotMatterToWhatHasItsNodes) {
  const int64_t id = world_.Submit(World::Spec({1}, 2));
  const std::string job = Begin(world_.AskedFor());
  world_.Sync(job);
  world_.state.scheduler.error = "away";
  EXPECT_THAT(Kinds(Run(id, 0)), ElementsAre(Reason::RUNNING));
  EXPECT_THAT(Kinds(Run(id, 1)), ElementsAre(Reason::STUDY_ORDER));
}

TEST_F(ExplainTest, WorkersThatHaveNotReportedAreCounted) {
  v1::StudySpec spec = World::Spec({2});
  spec.mutable_resources()->set_ranks_per_node(1);
  const int64_t id = world_.Submit(spec);
  const std::string job = world_.AskedFor();
  world_.After(5);
  Begin(job);
  Reason reason = Study(id).front();
  EXPECT_EQ(reason.kind(), Reason::WORKERS_STARTING);
  EXPECT_EQ(reason.message(), "0 of 2 workers of job job-1 reported");
  EXPECT_EQ(reason.subject(), "allocations/" + job);
  EXPECT_EQ(Micros(reason.since_time()), world_.now);
  world_.Sync(job);
  EXPECT_EQ(Study(id).front().message(), "1 of 2 workers of job job-1 reported");
}

TEST_F(ExplainTest, RunsOfItsOwnStudyGoFirst) {
  const int64_t id = world_.Submit(World::Spec({1}, 4));
  const std::string job = Begin(world_.AskedFor());
  std::vector<Reason> reasons = Run(id, 3);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::WORKERS_STARTING, Reason::STUDY_ORDER));
  EXPECT_EQ(reasons[1].message(), "3 queued runs of its study go first");
  EXPECT_EQ(reasons[1].subject(), RunOf(id, 0));
  world_.Sync(job);
  reasons = Run(id, 2);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::STUDY_ORDER));
  EXPECT_EQ(reasons[0].subject(), RunOf(id, 0));
  EXPECT_THAT(reasons[0].message(), HasSubstr("has the allocation of its study now, and 1 queued run"));
}

TEST_F(ExplainTest, TheCapOfTheCoordinatorComesBeforeTheStudiesAhead) {
  FillTheScheduler();
  v1::StudySpec urgent = World::Spec({1});
  urgent.set_priority(5);
  const int64_t first = world_.Submit(urgent);
  const int64_t id = world_.Submit(World::Spec({1}));
  const std::vector<Reason> reasons = Study(id);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::COORDINATOR_CAP, Reason::BEHIND_STUDY));
  EXPECT_EQ(
      reasons[0].message(),
      "the limit pending_allocations of ann in the default partition is reached: 4 of 4 jobs wait at the "
      "scheduler; another is submitted when one of them starts");
  EXPECT_EQ(reasons[1].subject(), absl::StrCat("studies/", first));
  EXPECT_THAT(reasons[1].message(), HasSubstr("its priority 5 is higher than 0"));
  EXPECT_THAT(Kinds(Study(first)), ElementsAre(Reason::COORDINATOR_CAP));
}

TEST_F(ExplainTest, AStudyGoesFirstForBeingEarlier) {
  FillTheScheduler();
  const int64_t earlier = world_.Submit(World::Spec({1}));
  world_.Submit(World::Spec({1}), "", "bob");
  world_.Submit(World::Spec({1}));
  const std::vector<Reason> reasons = Study(world_.Submit(World::Spec({1})));
  EXPECT_EQ(reasons[1].subject(), absl::StrCat("studies/", earlier));
  EXPECT_THAT(reasons[1].message(), HasSubstr("it was submitted earlier; then 1 more"));
}

TEST_F(ExplainTest, AllocationsThatEndBeforeAnAttemptDelayTheNextOne) {
  const int64_t id = world_.Submit(World::Spec({1}));
  for (int i = 0; i < 2; ++i) {
    world_.After(100);
    world_.Job(world_.AskedFor(), JobStatus::State::kFailed, "its workers ended with status 127");
  }
  const std::vector<Reason> reasons = Study(id);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::RETRY));
  EXPECT_EQ(reasons[0].message(),
            "its last 2 allocations ended before an attempt began: its workers ended with status 127");
  EXPECT_GT(Micros(reasons[0].next_try_time()), world_.now);
}

TEST_F(ExplainTest, AJobThatTheSchedulerAcceptsAndDoesNotListIsNamed) {
  const int64_t id = world_.Submit(World::Spec({1}));
  const std::string job = world_.AskedFor();
  world_.lifecycle.JobSubmitted(job, "17", world_.now, world_.fx);
  world_.Job(job, JobStatus::State::kUnknown);
  const std::vector<Reason> reasons = Study(id);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::SCHEDULER_PENDING));
  EXPECT_EQ(reasons[0].message(), "its job was submitted 2 times, because the scheduler did not list it");
}

TEST_F(ExplainTest, TheCapOfTheStudyIsNamed) {
  v1::StudySpec spec = World::Spec({1}, 3);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  spec.mutable_limits()->set_concurrent_allocations(1);
  const int64_t id = world_.Submit(spec);
  world_.AskedFor();
  EXPECT_THAT(Kinds(Run(id, 0)), ElementsAre(Reason::SCHEDULER_PENDING)) << "it has a separate allocation";
  const std::vector<Reason> reasons = Run(id, 2);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::STUDY_CAP, Reason::STUDY_ORDER));
  EXPECT_EQ(reasons[0].message(),
            "its study has 1 allocation, as many as its limits.concurrent_allocations allows");
  EXPECT_EQ(reasons[1].message(), "1 queued run of its study goes first");
  EXPECT_EQ(reasons[1].subject(), RunOf(id, 1));
}

TEST_F(ExplainTest, RunsWaitForTheAllocationOfTheirBlock) {
  v1::StudySpec spec = World::Spec({1, 2}, 4);
  spec.mutable_limits()->set_concurrent_allocations(2);
  const int64_t id = world_.Submit(spec);
  world_.lifecycle.Plan(world_.now, world_.fx);
  ASSERT_EQ(world_.fx.submit.size(), 2u);
  for (const JobRequest& request : world_.fx.submit) world_.Sync(Begin(request.token));
  std::vector<Reason> reasons = Run(id, 3);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::STUDY_ORDER));
  EXPECT_EQ(reasons[0].subject(), RunOf(id, 2));
  EXPECT_THAT(reasons[0].message(), testing::EndsWith(" has the allocation of its block now"));
  reasons = Run(id, 4);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::STUDY_CAP, Reason::STUDY_ORDER));
  EXPECT_EQ(reasons[0].message(), "each of the 2 allocations of its study serves another block");
  EXPECT_EQ(reasons[1].message(), "2 queued runs of its study go first");
}

TEST_F(ExplainTest, ARetryShowsHowTheLastAttemptFailed) {
  v1::StudySpec spec = World::Spec({1}, 2);
  spec.mutable_retry()->set_max(2);
  spec.mutable_retry()->add_on("node_fail");
  const int64_t id = world_.Submit(spec);
  const std::string job = Begin(world_.AskedFor());
  world_.Sync(job);
  world_.Job(job, JobStatus::State::kNodeFail, "node n7 failed");
  EXPECT_THAT(Kinds(Run(id, 0)), ElementsAre(Reason::RETRY)) << "it waits before it is tried again";
  world_.After(1);
  world_.AskedFor();
  const std::vector<Reason> reasons = Run(id, 0);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::SCHEDULER_PENDING, Reason::RETRY));
  EXPECT_EQ(reasons[1].subject(), RunOf(id, 0));
  EXPECT_THAT(reasons[1].message(), HasSubstr("node n7 failed"));
}

TEST_F(ExplainTest, WhatRunsRuns) {
  const int64_t id = world_.Submit(World::Spec({1}));
  const std::string job = Begin(world_.AskedFor());
  const auto desired = world_.Sync(job);
  EXPECT_THAT(Run(id, 0).front().message(), HasSubstr("attempt 1 is being started on node-0"));
  world_.After(1);
  world_.Sync(job, {World::Running(desired.attempts(0).token())});
  const Reason reason = Run(id, 0).front();
  EXPECT_EQ(reason.kind(), Reason::RUNNING);
  EXPECT_EQ(reason.message(), "attempt 1 runs on node-0");
  EXPECT_EQ(Micros(reason.since_time()), world_.now);
  EXPECT_THAT(Kinds(Study(id)), ElementsAre(Reason::RUNNING));
}

TEST_F(ExplainTest, WhatIsBeingStoppedStopsFirst) {
  const int64_t id = world_.Submit(World::Spec({1}, 2));
  const std::string job = Begin(world_.AskedFor());
  const auto desired = world_.Sync(job);
  world_.Sync(job, {World::Running(desired.attempts(0).token())});
  ASSERT_TRUE(world_.lifecycle.CancelRun(id, world_.study(id).runs[0].id, world_.now, world_.fx).ok());
  EXPECT_THAT(Kinds(Run(id, 0)), ElementsAre(Reason::STOPPING));
  const std::vector<Reason> reasons = Run(id, 1);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::STOPPING, Reason::STUDY_ORDER));
  EXPECT_EQ(reasons[0].subject(), RunOf(id, 0));
  EXPECT_EQ(Micros(reasons[0].since_time()), world_.now);
  ASSERT_TRUE(world_.lifecycle.CancelStudy(id, world_.now, world_.fx).ok());
  EXPECT_THAT(Kinds(Study(id)), ElementsAre(Reason::STOPPING));
  EXPECT_THAT(Kinds(Run(id, 1)), ElementsAre(Reason::FINAL));
}

TEST_F(ExplainTest, WhatTheAllocationHasNoTimeForWaitsForTheNext) {
  const int64_t id = world_.Submit(World::Spec({1}, 3));
  world_.ends_at = absl::FromUnixMicros(world_.now) + absl::Seconds(300);
  const std::string job = Begin(world_.AskedFor());
  auto desired = world_.Sync(job);
  const auto train = [&](int seconds) {
    for (int spoken = 0; spoken < seconds / 20; ++spoken) {
      world_.After(20);
      world_.Sync(job, {World::Running(desired.attempts(0).token())});
    }
  };
  train(100);
  desired = world_.Finish(job, desired);  // the second one begins with 200 s left
  ASSERT_EQ(desired.attempts_size(), 1);
  train(80);  // 120 s are left: enough for 1.1 times 100 s, but not with the warning time before the end
  const std::vector<Reason> reasons = Run(id, 2);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::WALL_CLOCK, Reason::STUDY_ORDER));
  EXPECT_EQ(reasons[0].message(),
            "job job-1 reaches its time limit in 2m, too soon for it; the next allocation serves it");
  EXPECT_EQ(reasons[0].subject(), "allocations/" + job);
}

TEST_F(ExplainTest, AnAllocationWhoseWorkersWereAskedToLeaveIsEnding) {
  const int64_t id = world_.Submit(World::Spec({1}, 2));
  const std::string job = Begin(world_.AskedFor());
  const auto desired = world_.Sync(job);
  world_.Sync(job, {World::Running(desired.attempts(0).token())}, "life-1", /*leaving=*/true);
  const std::vector<Reason> reasons = Run(id, 1);
  ASSERT_THAT(Kinds(reasons), ElementsAre(Reason::STOPPING, Reason::STUDY_ORDER));
  EXPECT_EQ(reasons[0].message(), "job job-1 is being ended; another follows");
  EXPECT_EQ(Micros(reasons[0].since_time()), world_.now);
}

TEST_F(ExplainTest, AnAllocationThatIsEndedForSilenceIsNamed) {
  v1::StudySpec spec = World::Spec({2});
  spec.mutable_resources()->set_ranks_per_node(1);
  const int64_t id = world_.Submit(spec);
  const std::string job = Begin(world_.AskedFor());
  world_.After(121);
  ASSERT_TRUE(world_.Cancelled(job));
  const Reason reason = Study(id).front();
  EXPECT_EQ(reason.kind(), Reason::STOPPING);
  EXPECT_THAT(reason.message(), HasSubstr("is being ended: no report from 2 of its 2 workers"));
  EXPECT_EQ(reason.subject(), "allocations/" + job);
}

TEST(FinalReasonTest, TellsHowItEnded) {
  db::RunRow run;
  run.id = 12;
  run.study_id = 7;
  run.state = db::RunState::kFailed;
  run.message = "rank 1: CUDA out of memory";
  run.finished = 1'795'000'000'000'000;
  const Reason failed = FinalReason(run);
  EXPECT_EQ(failed.kind(), Reason::FINAL);
  EXPECT_EQ(failed.message(), "it is over: it failed: rank 1: CUDA out of memory");
  EXPECT_EQ(failed.subject(), "studies/7/runs/12");
  EXPECT_EQ(failed.since_time().seconds(), 1'795'000'000);
  run.state = db::RunState::kSucceeded;
  EXPECT_EQ(FinalReason(run).message(), "it is over: it succeeded");
  run.state = db::RunState::kCancelled;
  EXPECT_EQ(FinalReason(run).message(), "it was cancelled");

  db::StudyRow study;
  study.id = 7;
  study.runs = 9;
  study.state = db::StudyState::kFailed;
  EXPECT_EQ(FinalReason(study, {0, 0, 0, 6, 2, 1, 0}).message(), "it is over: 2 of 9 runs failed");
  study.state = db::StudyState::kCancelled;
  EXPECT_EQ(FinalReason(study, {0, 0, 0, 6, 2, 1, 0}).message(),
            "it was cancelled; 6 of 9 runs had succeeded");
  study.state = db::StudyState::kSucceeded;
  EXPECT_EQ(FinalReason(study, {0, 0, 0, 9, 0, 0, 0}).message(), "it is over: 9 of 9 runs succeeded");
  EXPECT_EQ(FinalReason(study, {0, 0, 0, 6, 0, 0, 3}).message(),
            "it is over: 6 of 9 runs succeeded, and 3 were not needed");
}

}  // namespace
}  // namespace scalelab::server
