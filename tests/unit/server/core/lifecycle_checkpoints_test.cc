// Runs that continue from checkpoints when their allocation ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using JobState = JobStatus::State;
using testing::HasSubstr;

// A study of one run that writes checkpoints. By default, it is never retried.
struct Checkpointed : World {
  explicit Checkpointed(int retries = 0) {
    v1::StudySpec spec = Spec({1});
    (*spec.mutable_fixed()->mutable_fields())["checkpoint_every_steps"].set_number_value(10);
    spec.mutable_retry()->set_max(retries);
    id = Submit(spec);
    Begin();
  }
  // Starts the next job and its attempt.
  void Begin() {
    After(1000);
    job = AskedFor();
    ASSERT_NE(job, "");
    Job(job, JobState::kRunning);
    desired = Sync(job);
    ASSERT_EQ(desired.attempts_size(), 1);
    token = desired.attempts(0).token();
    Sync(job, {Running(token)});
    at = 0;
  }
  // Sends events of rank 0.
  void Send(std::optional<int64_t> resumed, std::optional<int64_t> checkpoint) {
    ParsedBatch batch;
    batch.token = token;
    batch.append.begin_position = at * 10;
    batch.append.begin_line = at;
    batch.append.end_position = ++at * 10;
    batch.append.end_line = at;
    batch.resumed_step = resumed;
    batch.checkpoint_step = checkpoint;
    std::vector<ParsedBatch> batches;
    batches.push_back(std::move(batch));
    lifecycle.Ingest(job, std::move(batches), fx);
  }
  const db::RunRow& run() const { return study(id).runs[0]; }

  int64_t id = 0;
  std::string job, token;
  v1::SynchronizeResponse desired;
  int64_t at = 0;
};

TEST(LifecycleCheckpoints, AllAttemptsOfARunShareADirectory) {
  Checkpointed w;
  const std::string first = w.desired.attempts(0).checkpoint_directory();
  EXPECT_EQ(first, absl::StrCat("/runs/", w.id, "/", w.run().id, "/checkpoints"));
  w.Send(0, 10);
  w.Job(w.job, JobState::kTimeout);
  w.Begin();
  EXPECT_EQ(w.desired.attempts(0).checkpoint_directory(), first);
  EXPECT_NE(w.desired.attempts(0).directory(), first);
  OneRun plain;
  EXPECT_EQ(plain.desired.attempts(0).checkpoint_directory(), "");
}

TEST(LifecycleCheckpoints, TheWorkerLearnsTheNumberOfEarlierAttempts) {
  Checkpointed w;
  EXPECT_EQ(w.desired.attempts(0).earlier_attempts(), 0);
  w.Send(0, 10);
  w.Job(w.job, JobState::kTimeout);
  w.Begin();
  EXPECT_EQ(w.desired.attempts(0).earlier_attempts(), 1);
}

TEST(LifecycleCheckpoints, ARunLongerThanItsAllocationsContinuesAsLongAsItProgresses) {
  Checkpointed w;
  int64_t step = 0;
  for (const JobState end :
       {JobState::kTimeout, JobState::kPreempted, JobState::kTimeout, JobState::kTimeout}) {
    w.Send(step, step + 10);
    step += 10;
    w.Job(w.job, end, "the end");
    ASSERT_EQ(w.run().state, db::RunState::kQueued);
    EXPECT_EQ(w.run().uncounted, w.run().attempts) << "it is no retry";
    EXPECT_THAT(w.run().message, HasSubstr(absl::StrCat("the next one continues after step ", step)));
    w.Begin();
  }
  // This one writes no checkpoint: another attempt would not get further.
  w.Send(step, std::nullopt);
  w.Job(w.job, JobState::kTimeout, "the end");
  EXPECT_EQ(w.run().state, db::RunState::kFailed);
}

TEST(LifecycleCheckpoints, TheFirstCheckpointAgainIsNoProgress) {
  Checkpointed w;
  w.Send(0, 10);
  w.Job(w.job, JobState::kTimeout);
  w.Begin();
  w.Send(10, 10);
  w.Job(w.job, JobState::kTimeout);
  EXPECT_EQ(w.run().state, db::RunState::kFailed);
}

TEST(LifecycleCheckpoints, AProgramThatBeginsAgainWithTheFirstStepMakesNoProgress) {
  Checkpointed w;
  w.Send(0, 10);
  w.Send(std::nullopt, 20);
  w.Job(w.job, JobState::kTimeout);
  ASSERT_EQ(w.run().state, db::RunState::kQueued);
  w.Begin();
  w.Send(std::nullopt, 10);  // the program does not read its checkpoint, and so reports no resumed_step
  w.Send(std::nullopt, 20);
  w.Job(w.job, JobState::kTimeout);
  EXPECT_EQ(w.run().state, db::RunState::kFailed);
}

TEST(LifecycleCheckpoints, ProgressIsComparedWithAllEarlierAttempts) {
  Checkpointed w;
  w.Send(0, 30);
  w.Job(w.job, JobState::kTimeout);
  w.Begin();
  w.Send(10, 40);  // the newest checkpoint was damaged
  w.Job(w.job, JobState::kPreempted);
  ASSERT_EQ(w.run().state, db::RunState::kQueued);
  w.Begin();
  w.Send(20, 40);
  w.Job(w.job, JobState::kTimeout);
  EXPECT_EQ(w.run().state, db::RunState::kFailed);
}

TEST(LifecycleCheckpoints, AProgramThatClaimsEndlessProgressHasAnEnd) {
  Checkpointed w;
  int attempts = 1;
  for (int64_t step = 0; attempts < 10'000; ++step, ++attempts) {
    w.Send(step, step + 1);
    w.Job(w.job, JobState::kTimeout);
    if (w.run().state != db::RunState::kQueued) break;
    ASSERT_NO_FATAL_FAILURE(w.Begin());
  }
  EXPECT_EQ(w.run().state, db::RunState::kFailed);
  EXPECT_EQ(attempts, 500);
}

TEST(LifecycleCheckpoints, OtherFailuresCountForTheLimitOfRetries) {
  Checkpointed w;
  w.Send(0, 10);
  w.Sync(w.job, {World::Ended(w.token, 1, v1::Attempt::TRAINER_ERROR)});
  EXPECT_EQ(w.run().state, db::RunState::kFailed);
}

TEST(LifecycleCheckpoints, ARunWhoseNodeOrWorkerWasLostContinuesAsARetry) {
  for (const auto& [end, cause] : {std::pair(JobState::kNodeFail, db::Cause::kNodeFail),
                                   std::pair(JobState::kFailed, db::Cause::kWorkerLost)}) {
    Checkpointed w(/*retries=*/1);
    const std::string directory = w.desired.attempts(0).checkpoint_directory();
    w.Send(0, 10);
    w.Job(w.job, end, "the end");
    ASSERT_EQ(w.run().state, db::RunState::kQueued);
    EXPECT_EQ(w.run().cause, cause);
    EXPECT_EQ(w.run().uncounted, 0) << "it is a retry";
    w.Begin();
    EXPECT_EQ(w.desired.attempts(0).checkpoint_directory(), directory);
    EXPECT_EQ(w.desired.attempts(0).earlier_attempts(), 1);
    w.Send(10, 20);
    EXPECT_EQ(w.fx.batch.attempts.back().resumed_step, 10);
    w.Job(w.job, end, "the end");
    EXPECT_EQ(w.run().state, db::RunState::kFailed) << "progress does not extend the limit of retries";
  }
}

TEST(LifecycleCheckpoints, TheirStepsAreStoredWithTheAttempt) {
  Checkpointed w;
  w.Send(30, std::nullopt);
  w.Send(std::nullopt, 40);
  ASSERT_FALSE(w.fx.batch.attempts.empty());
  EXPECT_EQ(w.fx.batch.attempts.back().resumed_step, 30);
  EXPECT_EQ(w.fx.batch.attempts.back().checkpoint_step, 40);
  const LiveAttempt& attempt = *w.state.attempt(w.state.attempt_by_token.at(w.token));
  EXPECT_EQ(attempt.step, 30) << "its progress";
}

TEST(LifecycleCheckpoints, TheLargestStepDoesNotOverflow) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  Checkpointed w;
  ParsedBatch batch;
  batch.token = w.token;
  batch.append.end_position = 10;
  batch.append.end_line = 1;
  batch.resumed_step = kLargest;  // the steps after warm-up, which count, begin above it
  batch.steps = {{7, *StepTimes::BucketOf(1)}};
  batch.last_step = kLargest;
  std::vector<ParsedBatch> batches;
  batches.push_back(std::move(batch));
  w.lifecycle.Ingest(w.job, std::move(batches), w.fx);
  const LiveAttempt& attempt = *w.state.attempt(w.state.attempt_by_token.at(w.token));
  EXPECT_EQ(attempt.step, kLargest);
  EXPECT_FALSE(attempt.ranks[0].steps.Median().has_value());
}

}  // namespace
}  // namespace scalelab::server
