// Tests of submissions: refused, failed, forgotten and repeated ones, and jobs that end before an attempt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "server/core/explain.h"
#include "server/core/lifecycle.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using JobState = JobStatus::State;
using testing::HasSubstr;

TEST(Lifecycle, AJobTheSchedulerForgotBeforeItBeganIsAskedForAgain) {
  World w;
  w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  w.lifecycle.JobSubmitted(job, std::string("17"), w.now, w.fx);
  w.Job(job, JobState::kUnknown);
  EXPECT_TRUE(w.Asked(job));
}

// For an hour, polls a job that the scheduler accepts but does not list. Returns the times of the submits.
std::vector<db::Micros> SubmitsOfAForgottenJob(World& w, const std::string& job, size_t most) {
  std::vector<db::Micros> submits;
  const auto accept = [&] {
    submits.push_back(w.now);
    w.lifecycle.JobSubmitted(job, std::string("17"), w.now, w.fx);
  };
  accept();
  for (int second = 0; second < 3600 && submits.size() < most; ++second) {
    w.fx.submit.clear();
    w.now += 1'000'000;
    w.Job(job, JobState::kUnknown);
    if (w.Asked(job)) accept();
  }
  return submits;
}

TEST(Lifecycle, AJobThatTheSchedulerForgetsAgainAndAgainIsSubmittedWithBackoffAndThenFails) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  const std::vector<db::Micros> submits = SubmitsOfAForgottenJob(w, job, 100);
  ASSERT_EQ(submits.size(), 8u);
  for (size_t i = 3; i < submits.size(); ++i)
    EXPECT_GT(submits[i] - submits[i - 1], submits[i - 1] - submits[i - 2]) << i;
  EXPECT_FALSE(w.state.allocation_by_token.contains(job));
  const FailedAllocations& failed = w.study(id).failed_allocations.at(0);
  EXPECT_EQ(failed.count, 1);
  EXPECT_EQ(failed.reason,
            "the scheduler accepted its job 8 times, and then did not list the job as pending or running");
  w.After(10);
  EXPECT_NE(w.AskedFor(), "") << "another allocation replaces it";
}

TEST(Lifecycle, AJobThatWasListedMayBeForgottenAgain) {
  World w;
  w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(SubmitsOfAForgottenJob(w, job, 7).size(), 7u) << round;
    w.Job(job, JobState::kPending);
  }
}

TEST(Lifecycle, ASchedulerThatIsAwayIsAskedAgainLaterAndSaysWhy) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  w.lifecycle.JobSubmitted(job, absl::UnavailableError("controller away"), w.now, w.fx);
  EXPECT_FALSE(w.Asked(job));
  EXPECT_EQ(w.state.allocation(*w.study(id).allocations.begin())->row.reason, "controller away");
  w.After(6);
  EXPECT_TRUE(w.Asked(job));
}

TEST(Lifecycle, AJobWhoseSubmitsFailWithoutAnExplanationIsGivenUpAfterAWeek) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}, 2));
  const std::string job = w.AskedFor();
  const auto fail = [&] {
    w.fx = Effects();
    w.lifecycle.JobSubmitted(job, absl::UnknownError("a project is missing"), w.now, w.fx);
  };
  const db::Micros begin = w.now;
  constexpr db::Micros kDay = 86'400'000'000;
  fail();
  while (w.state.allocation_by_token.contains(job) && w.now - begin < 30 * kDay) {
    w.After(30);
    if (!w.Asked(job)) w.Job(job, JobState::kUnknown);
    if (w.Asked(job)) fail();
  }
  EXPECT_NEAR(static_cast<double>(w.now - begin) / static_cast<double>(kDay), 7, 1);
  EXPECT_EQ(w.study(id).row.state, db::StudyState::kFailed);
  EXPECT_EQ(w.study(id).runs[1].message,
            "the scheduler refused the job: 2000 submissions in a row failed; the last one: a project is "
            "missing");
  ASSERT_TRUE(w.lifecycle.Retry(id, 0, nullptr, 0, w.now, w.fx).ok());
  w.After(600);
  EXPECT_NE(w.AskedFor(), "");
}

TEST(Lifecycle, LimitsAndASchedulerThatIsAwayAreWaitedForWithoutAnEnd) {
  for (const absl::Status& error :
       {absl::ResourceExhaustedError("a limit"), absl::UnavailableError("controller away")}) {
    World w;
    const int64_t id = w.Submit(World::Spec({1}));
    const std::string job = w.AskedFor();
    w.lifecycle.JobSubmitted(job, absl::UnknownError("timed out"), w.now, w.fx);
    for (int i = 0; i < 3000; ++i) w.lifecycle.JobSubmitted(job, error, w.now, w.fx);
    w.Job(job, JobState::kUnknown);
    EXPECT_EQ(w.run_state(id, 0), db::RunState::kQueued) << error;
    EXPECT_TRUE(w.state.allocation_by_token.contains(job)) << error;
  }
}

TEST(Lifecycle, AJobThatMayExistIsNotGivenUp) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  for (int i = 0; i < 2000; ++i) w.lifecycle.JobSubmitted(job, absl::UnknownError("timed out"), w.now, w.fx);
  w.Job(job, JobState::kPending);
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kQueued);
  w.Job(job, JobState::kUnknown);
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kFailed);
}

TEST(Lifecycle, AJobTheSchedulerWillNeverTakeFailsItsRuns) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}, 2));
  const std::string job = w.AskedFor();
  w.lifecycle.JobSubmitted(job, absl::InvalidArgumentError("no such partition"), w.now, w.fx);
  EXPECT_EQ(w.study(id).row.state, db::StudyState::kFailed);
  EXPECT_THAT(w.study(id).runs[1].message, HasSubstr("no such partition"));
}

TEST(Lifecycle, OnlySoManyAllocationsWaitAtOnceAndTheFairQueueChoosesThem) {
  World w;
  for (int i = 0; i < 10; ++i) w.Submit(World::Spec({1}));
  auto urgent = World::Spec({1});
  urgent.set_priority(5);
  w.lifecycle.Plan(w.now, w.fx);
  EXPECT_EQ(w.fx.submit.size(), 4u);
  w.fx.submit.clear();
  const int64_t id = w.Submit(urgent);
  w.Job(w.state.allocations.begin()->second->row.token, JobState::kRunning);
  ASSERT_NE(w.AskedFor(), "");
  EXPECT_EQ(w.study(id).allocations.size(), 1u);
}

TEST(Lifecycle, PendingJobsOfOneUserOrPartitionDoNotStopOthers) {
  World w;
  for (int i = 0; i < 10; ++i) w.Submit(World::Spec({1}));
  w.lifecycle.Plan(w.now, w.fx);
  w.fx.submit.clear();
  const int64_t others = w.Submit(World::Spec({1}), "", "bob");
  auto elsewhere = World::Spec({1});
  elsewhere.mutable_resources()->set_partition("gpu");
  const int64_t on_gpus = w.Submit(elsewhere);
  w.lifecycle.Plan(w.now, w.fx);
  EXPECT_EQ(w.fx.submit.size(), 2u);
  EXPECT_EQ(w.study(others).allocations.size(), 1u);
  EXPECT_EQ(w.study(on_gpus).allocations.size(), 1u);
}

TEST(Lifecycle, OneRefusedShapeFailsItsRunOnly) {
  World w;
  auto spec = World::Spec({1, 4});
  spec.set_allocation(v1::StudySpec::PER_RUN);
  const int64_t id = w.Submit(spec);
  w.lifecycle.Plan(w.now, w.fx);
  ASSERT_EQ(w.fx.submit.size(), 2u);
  w.lifecycle.JobSubmitted(w.fx.submit[1].token, absl::InvalidArgumentError("too many nodes"), w.now, w.fx);
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kQueued);
  EXPECT_EQ(w.run_state(id, 1), db::RunState::kFailed);
}

TEST(Lifecycle, AllocationsThatDieBeforeAnAttemptAreRetriedWithBackoffAndThenFail) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}, 3));
  std::vector<db::Micros> times;
  for (const db::Micros end = w.now + 3'600'000'000; w.state.study(id)->queued.size() == 3 && w.now < end;) {
    const std::string job = w.AskedFor();
    if (!job.empty()) {
      times.push_back(w.now);
      w.Job(job, JobState::kFailed, "its workers ended with status 127");
    }
    w.After(0.1);
  }
  ASSERT_EQ(times.size(), 8u);
  for (size_t i = 2; i < times.size(); ++i) EXPECT_GT(times[i] - times[i - 1], times[i - 1] - times[i - 2]);
  EXPECT_EQ(w.study(id).row.state, db::StudyState::kFailed);
  EXPECT_EQ(w.study(id).runs[2].message,
            "8 allocations in a row ended before an attempt began; the last one: its workers ended with "
            "status 127");
}

TEST(Lifecycle, PreemptionBeforeAnAttemptIsRetriedWithoutEnd) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  for (int i = 0; i < 20; ++i) {
    w.After(400);
    const std::string job = w.AskedFor();
    ASSERT_NE(job, "") << i;
    w.Job(job, JobState::kPreempted);
  }
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kQueued);
}

TEST(Lifecycle, AnAttemptEndsTheCountOfFailedAllocations) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  for (int i = 0; i < 7; ++i) {
    w.After(400);
    w.Job(w.AskedFor(), JobState::kFailed);
  }
  w.After(400);
  const std::string job = w.AskedFor();
  w.Job(job, JobState::kRunning);
  w.Sync(job);
  EXPECT_TRUE(w.study(id).failed_allocations.empty());
}

TEST(Lifecycle, AJobThatIsBeingCancelledIsCancelledAgainWithBackoff) {
  OneRun w;
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  w.After(30);
  int cancels = 0;
  for (int poll = 0; poll < 600; ++poll) {
    w.now += 1'000'000;
    w.Job(w.job, JobState::kRunning);
    cancels += static_cast<int>(w.fx.cancel.size());
    w.fx.cancel.clear();
  }
  EXPECT_GE(cancels, 4);
  EXPECT_LE(cancels, 10);
}

TEST(Lifecycle, TicksDoNotRepeatTheCancelOfAJobWhoseAttemptDoesNotStop) {
  OneRun w;
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  w.After(25);
  ASSERT_TRUE(w.Cancelled(w.job));
  w.fx.cancel.clear();
  for (int second = 0; second < 100; ++second) {
    w.Sync(w.job, {World::Running(w.token)});
    w.After(1);
  }
  EXPECT_TRUE(w.fx.cancel.empty()) << "only a poll shows that the job still exists";
  EXPECT_EQ(w.state.allocation(w.state.allocation_by_token.at(w.job))->cancels, 1);
}

// Polls a job that does not end for `seconds` seconds. Returns the times of the cancels.
std::vector<db::Micros> CancelsOfAJobThatStays(World& w, const std::string& job, JobState state, int seconds,
                                               const absl::Status& answer) {
  std::vector<db::Micros> cancels;
  for (int second = 0; second < seconds; ++second) {
    for (const std::string& token : std::exchange(w.fx.cancel, {})) {
      cancels.push_back(w.now);
      w.lifecycle.JobsCancelled({token}, answer);
    }
    w.now += 1'000'000;
    w.Job(job, state);
  }
  return cancels;
}

TEST(Lifecycle, AJobThatCannotBeCancelledIsReportedAndNotForgotten) {
  OneRun w;
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  w.After(30);
  EXPECT_TRUE(w.lifecycle.JobsChange());
  const absl::Status denied = absl::UnavailableError("scancel failed: Access/permission denied");
  CancelsOfAJobThatStays(w, w.job, JobState::kRunning, 300, denied);
  EXPECT_TRUE(w.fx.warnings.empty()) << "the cancels may still take effect";
  EXPECT_EQ(ExplainStudy(w.state, w.study(w.id), w.now)[0].message(), "it was cancelled; 1 run to stop");

  CancelsOfAJobThatStays(w, w.job, JobState::kRunning, 1500, denied);
  ASSERT_EQ(w.fx.warnings.size(), 1u) << "it is reported once";
  EXPECT_EQ(
      w.fx.warnings[0],
      absl::StrCat("allocation ", w.job,
                   ": job job-1 has not ended after 8 cancels, the last of which failed: scancel failed: "
                   "Access/permission denied; it is cancelled again every 5 minutes; an operator can end "
                   "it (Slurm: `scancel job-1`) or look for its processes on node-0"));
  const std::vector<v1::Reason> reasons = ExplainStudy(w.state, w.study(w.id), w.now);
  EXPECT_EQ(reasons[0].kind(), v1::Reason::STOPPING);
  EXPECT_EQ(reasons[0].subject(), "allocations/" + w.job);
  EXPECT_THAT(reasons[0].message(), HasSubstr("an operator can end it (Slurm: `scancel job-1`)"));
  EXPECT_TRUE(reasons[0].has_since_time());
  EXPECT_TRUE(reasons[0].has_next_try_time());
  EXPECT_THAT(ExplainRun(w.state, w.study(w.id), 0, w.now)[0].message(),
              HasSubstr("job job-1 has not ended"));

  // The job still counts as running, and is polled at the lowest rate and cancelled every five minutes.
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kRunning);
  EXPECT_EQ(w.lifecycle.JobsToPoll(), std::vector<std::string>{w.job});
  EXPECT_FALSE(w.lifecycle.JobsChange());
  const auto cancels = CancelsOfAJobThatStays(w, w.job, JobState::kRunning, 36'000, denied);
  EXPECT_GE(cancels.size(), 90u);
  EXPECT_LE(cancels.size(), 165u);
  EXPECT_EQ(w.fx.warnings.size(), 1u);

  w.Job(w.job, JobState::kCancelled);
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kCancelled);
  ASSERT_EQ(w.fx.warnings.size(), 2u);
  EXPECT_THAT(w.fx.warnings[1], HasSubstr("its job has ended after"));
}

TEST(Lifecycle, APendingJobThatCannotBeCancelledIsReportedAlthoughItsStudyIsOver) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  w.lifecycle.JobSubmitted(job, std::string("17"), w.now, w.fx);
  ASSERT_TRUE(w.lifecycle.CancelStudy(id, w.now, w.fx).ok());
  ASSERT_EQ(w.study(id).row.state, db::StudyState::kCancelled);
  EXPECT_TRUE(ExplainJobsLeft(w.state, id, w.now).empty());
  CancelsOfAJobThatStays(w, job, JobState::kPending, 1800, absl::OkStatus());
  const std::vector<v1::Reason> left = ExplainJobsLeft(w.state, id, w.now);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_THAT(left[0].message(), HasSubstr("has not ended after"));
  EXPECT_TRUE(w.state.allocation_by_token.contains(job));
}

TEST(Lifecycle, AJobThatCannotBeCancelledExplainsWhyTheNextAllocationWaits) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}, 2));
  const std::string job = w.AskedFor();
  w.Job(job, JobState::kRunning);
  const std::string token = w.Sync(job).attempts(0).token();
  w.Sync(job, {World::Running(token)});
  w.After(60);  // its worker is silent
  ASSERT_TRUE(w.Cancelled(job));
  CancelsOfAJobThatStays(w, job, JobState::kRunning, 1800, absl::OkStatus());
  EXPECT_EQ(w.AskedFor(), "");
  const std::vector<v1::Reason> reasons = ExplainStudy(w.state, w.study(id), w.now);
  EXPECT_EQ(reasons[0].subject(), "allocations/" + job);
  EXPECT_THAT(reasons[0].message(), HasSubstr("has not ended after"));
}

TEST(Lifecycle, ARefusedSubmitIsRetriedWithBackoff) {
  World w;
  w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  int submits = 0;
  w.lifecycle.JobSubmitted(job, absl::ResourceExhaustedError("a limit"), w.now, w.fx);
  for (int second = 0; second < 3600; ++second) {
    w.After(1);
    if (!w.Asked(job)) continue;
    ++submits;
    w.fx.submit.clear();
    w.lifecycle.JobSubmitted(job, absl::ResourceExhaustedError("a limit"), w.now, w.fx);
  }
  EXPECT_GE(submits, 10);
  EXPECT_LE(submits, 20);
}

TEST(Lifecycle, ACancelledJobThatWasRefusedIsNotSubmittedAgain) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  w.lifecycle.JobSubmitted(job, absl::UnavailableError("controller away"), w.now, w.fx);
  ASSERT_TRUE(w.lifecycle.CancelStudy(id, w.now, w.fx).ok());
  w.After(60);
  EXPECT_FALSE(w.Asked(job));
}

TEST(Lifecycle, AJobIsNotSubmittedAgainWhileASubmitIsInFlight) {
  World w;
  w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  w.Job(job, JobStatus::State::kUnknown);
  EXPECT_FALSE(w.Asked(job)) << "the scheduler may accept it after that poll";
  w.lifecycle.JobSubmitted(job, absl::UnavailableError("sbatch timed out"), w.now, w.fx);
  w.After(10);
  EXPECT_TRUE(w.Asked(job));
  w.fx.submit.clear();
  w.Job(job, JobStatus::State::kUnknown);
  EXPECT_FALSE(w.Asked(job));
}

TEST(Lifecycle, ACancelledAllocationEndsAfterTheAnswerToItsSubmit) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  EXPECT_TRUE(w.lifecycle.CancelStudy(id, w.now, w.fx).ok());
  w.Job(job, JobStatus::State::kUnknown);
  EXPECT_EQ(w.state.allocations.size(), 1u) << "the job may be accepted later";
  w.lifecycle.JobSubmitted(job, std::string("17"), w.now, w.fx);
  w.fx.cancel.clear();
  w.now += 20'000'000;
  w.Job(job, JobStatus::State::kPending);
  EXPECT_TRUE(w.Cancelled(job));
  w.Job(job, JobStatus::State::kCancelled);
  EXPECT_TRUE(w.state.allocations.empty());
}

}  // namespace
}  // namespace scalelab::server
