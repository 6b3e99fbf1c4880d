// Tests of the delays between the attempts of a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/explain.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using JobState = JobStatus::State;
using testing::HasSubstr;

// A study in one allocation at a time, whose runs may be repeated often.
struct Repeating : World {
  explicit Repeating(int repeats, v1::StudySpec::AllocationMode mode = v1::StudySpec::GROUP) {
    auto spec = Spec({1}, repeats);
    spec.mutable_retry()->set_max(1000);
    spec.mutable_retry()->add_on("trainer_error");
    spec.set_allocation(mode);
    id = Submit(spec);
    Begin();
  }
  // Starts the job that was submitted.
  void Begin() {
    job = AskedFor();
    ASSERT_NE(job, "");
    Job(job, JobState::kRunning);
    desired = Sync(job);
  }
  void Fail(v1::Attempt::Cause cause = v1::Attempt::CAUSE_UNSPECIFIED) {
    ASSERT_EQ(desired.attempts_size(), 1);
    desired = Sync(job, {Ended(desired.attempts(0).token(), 1, cause)});
  }
  // Advances the clock in small steps, in which the worker reports.
  void Pass(double seconds) {
    for (double passed = 0; passed < seconds; passed += 0.1) {
      After(0.1);
      desired = Sync(job, Reports());
    }
  }
  // Fails the first run until it has failed `times` times in a row, in as many allocations as necessary.
  void FailOften(int times) {
    const db::Micros last = now + int64_t{times} * 3'600'000'000;
    for (int i = 0; i < times; ++i) {
      while (desired.attempts_size() == 0) {
        ASSERT_LT(now, last) << "the run is not repeated";
        if (desired.terminate()) {
          Job(job, JobState::kCompleted);
          while ((job = AskedFor()).empty()) {
            ASSERT_LT(now, last) << "no allocation is asked for";
            After(1);
          }
          Job(job, JobState::kRunning);
          desired = Sync(job);
        } else {
          Pass(0.1);
        }
      }
      Fail();
    }
  }
  // Returns the position of the run that the allocation executes; -1 if there is none.
  int position() const {
    return desired.attempts_size() == 0
               ? -1
               : state.attempt(state.attempt_by_token.at(desired.attempts(0).token()))->position;
  }
  std::vector<Status> Reports() const {
    std::vector<Status> reports;
    for (const auto& attempt : desired.attempts()) reports.push_back(Running(attempt.token()));
    return reports;
  }
  int64_t id = 0;
  std::string job;
  v1::SynchronizeResponse desired;
};

TEST(Delays, ARunThatFailsAtOnceIsRepeatedWithBackoff) {
  Repeating w(1);
  const db::Micros begin = w.now;
  std::vector<db::Micros> delays;
  while (w.now - begin < 3'600'000'000 && delays.size() <= 30) {
    const db::Micros before = w.now;
    w.FailOften(1);
    delays.push_back(w.now - before);
  }
  EXPECT_GE(delays.size(), 10u);
  EXPECT_LE(delays.size(), 30u);
  EXPECT_LE(delays[1], 1'200'000) << "the first repeat";
  for (const db::Micros delay : delays) EXPECT_LE(delay, 302'000'000);
}

TEST(Delays, OtherRunsGoOnWhileARunWaitsForItsRepeat) {
  Repeating w(4);
  w.Fail();
  ASSERT_EQ(w.position(), 1);
  w.desired = w.Finish(w.job, w.desired);
  ASSERT_EQ(w.position(), 2);
  w.Pass(1.5);
  w.desired = w.Finish(w.job, w.desired);
  EXPECT_EQ(w.position(), 0) << "its delay is over";
  w.desired = w.Finish(w.job, w.desired);
  w.Finish(w.job, w.desired);
  EXPECT_EQ(w.study(w.id).row.state, db::StudyState::kSucceeded);
}

TEST(Delays, ASuccessOfAnotherRunDoesNotEndTheBackoff) {
  Repeating w(2);
  w.FailOften(1);
  w.desired = w.Finish(w.job, w.desired);
  w.FailOften(2);
  EXPECT_EQ(w.study(w.id).runs[0].attempts, 3);
  w.Pass(2);
  EXPECT_EQ(w.position(), -1);
  w.Pass(3);
  EXPECT_EQ(w.position(), 0);
}

TEST(Delays, AnAllocationWaitsForAShortDelayAndIsReleasedForALongOne) {
  Repeating w(1);
  w.FailOften(4);
  EXPECT_EQ(w.position(), -1);
  EXPECT_FALSE(w.desired.terminate());
  EXPECT_EQ(w.AskedFor(), "");
  w.FailOften(5);
  EXPECT_TRUE(w.desired.terminate());
  EXPECT_EQ(w.AskedFor(), "") << "no job is submitted before the delay is over";
  w.Job(w.job, JobState::kCompleted);
  w.After(10);
  EXPECT_EQ(w.AskedFor(), "");
  w.After(300);
  w.Begin();
  EXPECT_EQ(w.position(), 0);
  EXPECT_TRUE(w.study(w.id).failed_allocations.empty());
}

TEST(Delays, AllocationsForOtherRunsAreMadeWhileARunWaits) {
  Repeating w(5, v1::StudySpec::PER_RUN);  // four jobs may be pending; one of them has started
  ASSERT_EQ(w.study(w.id).allocations.size(), 4u);
  w.Fail();
  EXPECT_FALSE(w.desired.terminate());
  w.lifecycle.Plan(w.now, w.fx);
  EXPECT_EQ(w.study(w.id).allocations.size(), 5u);
}

TEST(Delays, ARunThatMadeProgressBeforeATimeLimitContinuesAtOnce) {
  Repeating w(1);
  ParsedBatch batch;
  batch.token = w.desired.attempts(0).token();
  batch.append.end_position = 10;
  batch.append.end_line = 1;
  batch.checkpoint_step = 5;
  std::vector<ParsedBatch> batches;
  batches.push_back(std::move(batch));
  w.lifecycle.Ingest(w.job, std::move(batches), w.fx);
  w.Job(w.job, JobState::kTimeout);
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kQueued);
  EXPECT_NE(w.AskedFor(), "");
}

TEST(Delays, StorageErrorsOfOneRunPauseTheStudyAlthoughOthersSucceed) {
  Repeating w(6);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(w.position(), 0) << i;
    w.Fail(v1::Attempt::STORAGE_ERROR);
    if (i == 2) break;
    w.Pass(10);
    w.desired = w.Finish(w.job, w.desired);
  }
  EXPECT_THAT(w.study(w.id).row.pause_reason,
              HasSubstr("3 attempts in a row of studies/1/runs/1 could not write their files: "));
  w.Job(w.job, JobState::kCompleted);
  ASSERT_TRUE(w.lifecycle.ResumeStudy(w.id, w.now, w.fx).ok());
  w.Begin();
  EXPECT_EQ(w.position(), 0) << "resuming ends the delay";
  w.Fail(v1::Attempt::STORAGE_ERROR);
  EXPECT_EQ(w.study(w.id).row.pause_reason, "") << "the count begins again";
}

TEST(Delays, AStudyWhoseOnlyRunWaitsIsPausedAndCancelled) {
  Repeating w(1);
  for (int i = 0; i < 3; ++i) {
    w.Fail(v1::Attempt::STORAGE_ERROR);
    if (i < 2) w.Pass(10);
  }
  EXPECT_NE(w.study(w.id).row.pause_reason, "");
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  EXPECT_EQ(w.study(w.id).row.state, db::StudyState::kCancelled);
}

TEST(Delays, AreExplainedWithTheTimeOfTheNextAttempt) {
  Repeating w(1);
  w.FailOften(3);
  const auto reasons = ExplainStudy(w.state, w.study(w.id), w.now);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].kind(), v1::Reason::RETRY);
  EXPECT_THAT(reasons[0].message(),
              HasSubstr("it waits before it is tried again, longer after each failure: attempt 3 failed"));
  EXPECT_GT(reasons[0].next_try_time().seconds(), w.now / 1'000'000);
}

TEST(Delays, AClockThatIsSetBackDoesNotProlongThem) {
  Repeating w(1);
  w.FailOften(3);
  const db::Micros back = 500'000'000;
  w.now -= back;
  w.lifecycle.MoveTimeouts(-back, -back);
  w.Pass(5);
  EXPECT_EQ(w.position(), 0);
}

}  // namespace
}  // namespace scalelab::server
