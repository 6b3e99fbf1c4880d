// Tests of short runs that are assigned to a worker in advance.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using JobState = JobStatus::State;

// A study of `repeats` short runs, of which the first has succeeded.
struct ShortRuns : World {
  explicit ShortRuns(int repeats, double seconds = 0.001, int limit = 4) {
    queue_limit = limit;
    id = Submit(Spec({1}, repeats));
    job = AskedFor();
    Job(job, JobState::kRunning);
    desired = Sync(job);
    EXPECT_EQ(desired.attempts_size(), 1) << "the time of a run is not known yet";
    desired = Sync(job, {Finished(0, seconds)});
  }
  std::string Token(int i) const { return desired.attempts(i).token(); }
  // Stores the finish event of the desired attempt `i`. Returns its final report.
  Status Finished(int i, double seconds = 0.001) {
    Report(Token(i), 0, 0, 10, true);
    Status status = Ended(Token(i));
    status.set_run_seconds(seconds);
    return status;
  }
  static Status Preparing(const std::string& token) {
    Status status;
    status.set_token(token);
    status.set_state(Status::PREPARING);
    return status;
  }
  int64_t id;
  std::string job;
  v1::SynchronizeResponse desired;
};

TEST(LifecycleAhead, AWorkerGetsTheNextShortRunsBeforeTheFirstHasEnded) {
  ShortRuns w(20);
  ASSERT_EQ(w.desired.attempts_size(), 5);
  EXPECT_FALSE(w.desired.attempts(0).in_turn());
  for (int i = 1; i < 5; ++i) EXPECT_TRUE(w.desired.attempts(i).in_turn()) << i;
  EXPECT_EQ(w.state.attempts.size(), 5u);
}

TEST(LifecycleAhead, AnOlderWorkerGetsOneRunAtATime) {
  ShortRuns w(20, 0.001, 0);
  EXPECT_EQ(w.desired.attempts_size(), 1);
}

TEST(LifecycleAhead, LongRunsWaitInTheQueueAndNotAtAWorker) {
  ShortRuns w(20, 60);
  EXPECT_EQ(w.desired.attempts_size(), 1);
}

TEST(LifecycleAhead, OneReportEndsSeveralAttemptsAndGetsAsManyNewOnes) {
  ShortRuns w(20);
  const auto last = w.Token(4);
  w.desired = w.Sync(w.job, {w.Finished(0), w.Finished(1), w.Finished(2), World::Running(w.Token(3)),
                             ShortRuns::Preparing(last)});
  ASSERT_EQ(w.desired.attempts_size(), 5);
  EXPECT_EQ(w.desired.attempts(1).token(), last);
  for (int position = 0; position < 4; ++position) {
    EXPECT_EQ(w.run_state(w.id, position), db::RunState::kSucceeded) << position;
  }
  EXPECT_EQ(w.state.attempt(w.state.attempt_by_token.at(w.Token(0)))->row.state, db::AttemptState::kRunning);
}

TEST(LifecycleAhead, TheStudyEndsWithItsLastRun) {
  ShortRuns w(4);
  ASSERT_EQ(w.desired.attempts_size(), 3);
  w.desired = w.Sync(w.job, {w.Finished(0), w.Finished(1), w.Finished(2)});
  EXPECT_TRUE(w.desired.terminate());
  EXPECT_EQ(w.desired.attempts_size(), 0);
  EXPECT_EQ(w.study(w.id).row.state, db::StudyState::kSucceeded);
  EXPECT_TRUE(w.state.attempts.empty());
}

TEST(LifecycleAhead, TheStartOfARunIsThatOfItsProcesses) {
  ShortRuns w(4);
  w.now += 5'000'000;
  w.fx = Effects();
  w.Sync(w.job, {w.Finished(0, 0.002), w.Finished(1, 0.002)});
  int ended = 0;
  for (const db::AttemptRow& row : w.fx.batch.attempts) {
    if (row.state != db::AttemptState::kSucceeded) continue;
    ++ended;
    EXPECT_EQ(row.finished - row.started, 2000);
  }
  EXPECT_EQ(ended, 2);
}

TEST(LifecycleAhead, CancellingTheStudyStopsTheAttemptsThatWaitToo) {
  ShortRuns w(20);
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  w.desired = w.Sync(
      w.job, {World::Running(w.Token(0)), ShortRuns::Preparing(w.Token(1)), ShortRuns::Preparing(w.Token(2)),
              ShortRuns::Preparing(w.Token(3)), ShortRuns::Preparing(w.Token(4))});
  ASSERT_EQ(w.desired.attempts_size(), 5);
  std::vector<World::Status> ends;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(w.desired.attempts(i).stop()) << i;
    ends.push_back(World::Ended(w.Token(i), i == 0 ? 143 : 0));
    ends.back().set_stopped(true);
  }
  w.desired = w.Sync(w.job, ends);
  EXPECT_TRUE(w.desired.terminate());
  EXPECT_TRUE(w.state.attempts.empty());
  EXPECT_EQ(w.study(w.id).row.state, db::StudyState::kCancelled);
}

TEST(LifecycleAhead, CancellingARunThatWaitsStopsThatOneOnly) {
  ShortRuns w(20);
  const int64_t run = w.state.attempt(w.state.attempt_by_token.at(w.Token(2)))->row.run_id;
  ASSERT_TRUE(w.lifecycle.CancelRun(w.id, run, w.now, w.fx).ok());
  w.desired = w.Sync(w.job, {World::Running(w.Token(0))});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(w.desired.attempts(i).stop(), i == 2) << i;
}

TEST(LifecycleAhead, RunsThatWaitAtALostWorkerAreQueuedAgainAndNotCounted) {
  ShortRuns w(20);
  w.Sync(w.job, {World::Running(w.Token(0)), ShortRuns::Preparing(w.Token(1))});
  w.Job(w.job, JobState::kNodeFail, "node-0 is down");
  EXPECT_TRUE(w.state.attempts.empty());
  EXPECT_EQ(w.run_state(w.id, 1), db::RunState::kQueued);
  EXPECT_EQ(w.study(w.id).runs[1].uncounted, 0) << "it ran";
  for (int position = 2; position < 6; ++position) {
    EXPECT_EQ(w.run_state(w.id, position), db::RunState::kQueued) << position;
    EXPECT_EQ(w.study(w.id).runs[position].uncounted, 1) << position;
  }
}

TEST(LifecycleAhead, ARestartedWorkerGetsTheAttemptsThatTheEarlierOneNeverHad) {
  ShortRuns w(20);
  w.Sync(w.job, {World::Running(w.Token(0))});
  const std::string running = w.Token(0), second = w.Token(1);
  w.desired = w.Sync(w.job, {}, "life-2");
  EXPECT_EQ(w.state.attempt_by_token.count(running), 0u) << "the new worker does not have it";
  EXPECT_EQ(w.Token(0), second);
}

TEST(LifecycleAhead, AnAllocationOfOneRunGetsNoOther) {
  World w;
  w.queue_limit = 4;
  auto spec = World::Spec({1}, 3);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  w.Submit(spec);
  w.lifecycle.Plan(w.now, w.fx);
  ASSERT_EQ(w.fx.submit.size(), 3u);
  for (const JobRequest& request : std::vector(w.fx.submit)) {
    w.Job(request.token, JobState::kRunning);
    const auto desired = w.Sync(request.token);
    ASSERT_EQ(desired.attempts_size(), 1);
    w.Report(desired.attempts(0).token(), 0, 0, 10, true);
    auto ended = World::Ended(desired.attempts(0).token());
    ended.set_run_seconds(0.001);
    EXPECT_EQ(w.Sync(request.token, {ended}).attempts_size(), 0);
  }
}

}  // namespace
}  // namespace scalelab::server
