// Tests of noisy attempts: how they end, and which of them are repeated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/convert.h"
#include "server/core/outcome.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A study of one cell whose attempts report other load.
struct Guarded : World {
  explicit Guarded(v1::NoiseGuard guard = {}) {
    v1::StudySpec spec = Spec({1});
    *spec.mutable_noise_guard() = std::move(guard);
    spec.mutable_noise_guard()->set_calibrate(true);
    id = Submit(spec);
    job = AskedFor();
    Job(job, JobStatus::State::kRunning);
    desired = Sync(job);
  }
  // Ends the attempt successfully with this load during it.
  void Finish(double other_load) {
    const std::string token = desired.attempts(0).token();
    Sync(job, {Running(token)});
    Report(token, 0, 0, 10, true);
    Status ended = Ended(token);
    ended.mutable_noise()->set_node("node-0");
    ended.mutable_noise()->set_other_load(other_load);
    fx = Effects();
    desired = Sync(job, {ended});
  }
  const db::AttemptRow& attempt() const { return fx.batch.attempts.at(0); }

  int64_t id;
  std::string job;
  v1::SynchronizeResponse desired;
};

v1::NoiseGuard RerunNoisy(int most) {
  v1::NoiseGuard guard;
  guard.set_rerun_if(v1::NoiseGuard::NOISY);
  guard.set_max_reruns(most);
  return guard;
}

TEST(LifecycleNoise, TheDesiredStateHasTheTimesOfCalibrations) {
  v1::NoiseGuard guard;
  guard.set_calibration_ms(50);
  guard.set_interval_seconds(3);
  const Guarded w(guard);
  EXPECT_DOUBLE_EQ(w.desired.attempts(0).calibration_seconds(), 0.05);
  EXPECT_DOUBLE_EQ(w.desired.attempts(0).calibration_interval(), 3);
  EXPECT_DOUBLE_EQ(Guarded().desired.attempts(0).calibration_seconds(), 0.1) << "the default";
  EXPECT_EQ(OneRun().desired.attempts(0).calibration_seconds(), 0) << "no guard";
}

TEST(LifecycleNoise, AQuietAttemptHasNoCause) {
  Guarded w;
  w.Finish(0.01);
  EXPECT_EQ(w.attempt().state, db::AttemptState::kSucceeded);
  EXPECT_EQ(w.attempt().cause, db::Cause::kNone);
}

TEST(LifecycleNoise, ANoisyAttemptSucceedsAndIsMarked) {
  Guarded w;
  w.Finish(0.8);
  EXPECT_EQ(w.attempt().state, db::AttemptState::kSucceeded);
  EXPECT_EQ(w.attempt().cause, db::Cause::kNoisy);
  EXPECT_THAT(w.attempt().message, HasSubstr("other processes used 80%"));
  ASSERT_THAT(w.fx.batch.runs, Not(IsEmpty()));
  const db::RunRow& run = w.fx.batch.runs.back();
  EXPECT_EQ(run.state, db::RunState::kSucceeded);
  EXPECT_EQ(run.cause, db::Cause::kNoisy);
  EXPECT_EQ(run.message, "") << "its values are usable";
  ASSERT_THAT(w.fx.batch.summaries, SizeIs(1));
  v1::Run shown;
  SetProgress(run, &shown);
  EXPECT_TRUE(shown.noisy());
}

TEST(LifecycleNoise, WhatNodesShowedIsStoredWithTheProvenance) {
  Guarded w;
  w.Finish(0.8);
  ASSERT_THAT(w.fx.batch.provenance, SizeIs(1));
  const auto noise = NoiseOfProvenance(w.fx.batch.provenance[0].json);
  ASSERT_THAT(noise, SizeIs(1));
  EXPECT_EQ(noise[0].node(), "node-0");
  EXPECT_DOUBLE_EQ(noise[0].other_load(), 0.8);
  EXPECT_THAT(noise[0].reasons(), SizeIs(1));
  EXPECT_THAT(NodesOfProvenance(w.fx.batch.provenance[0].json), SizeIs(1)) << "the hardware stays readable";
}

TEST(LifecycleNoise, ANoisyAttemptIsRepeatedUntilOneIsQuiet) {
  Guarded w(RerunNoisy(2));
  w.Finish(0.8);
  EXPECT_EQ(w.attempt().state, db::AttemptState::kFailed);
  EXPECT_EQ(w.attempt().cause, db::Cause::kNoisy);
  EXPECT_EQ(w.attempt().throughput, 100) << "its results are stored, although they do not count";
  EXPECT_THAT(w.fx.batch.summaries, IsEmpty());
  ASSERT_EQ(w.desired.attempts_size(), 1) << "the next attempt";
  w.Finish(0.01);
  EXPECT_EQ(w.attempt().state, db::AttemptState::kSucceeded);
  EXPECT_EQ(w.attempt().throughput, std::nullopt) << "the summary of the run has it";
  EXPECT_EQ(w.attempt().number, 2);
  EXPECT_EQ(w.fx.batch.runs.back().cause, db::Cause::kNone);
  EXPECT_THAT(w.fx.batch.summaries, SizeIs(1));
}

TEST(LifecycleNoise, AfterTheLastRepetitionTheNoisyOneCounts) {
  Guarded w(RerunNoisy(1));
  w.Finish(0.8);
  EXPECT_EQ(w.attempt().state, db::AttemptState::kFailed);
  w.Finish(0.9);
  EXPECT_EQ(w.attempt().state, db::AttemptState::kSucceeded);
  EXPECT_EQ(w.attempt().cause, db::Cause::kNoisy);
  EXPECT_THAT(w.fx.batch.summaries, SizeIs(1));
}

TEST(LifecycleNoise, RepetitionsDoNotUseUpRetries) {
  v1::NoiseGuard guard = RerunNoisy(5);
  Guarded w(guard);
  for (int i = 0; i < 5; ++i) w.Finish(0.8);
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kRunning);
  const db::RunRow& run = w.study(w.id).runs[0];
  EXPECT_EQ(run.attempts - run.uncounted, 1);
}

TEST(LifecycleNoise, NoNodeIsAvoidedBecauseOfNoise) {
  Guarded w(RerunNoisy(5));
  for (int i = 0; i < 5; ++i) w.Finish(0.8);
  EXPECT_THAT(w.state.bad_nodes.Avoided(w.now), IsEmpty());
}

// An attempt on three nodes.
struct ThreeNodes : World {
  ThreeNodes() {
    v1::StudySpec spec = Spec({3});
    spec.mutable_scaling()->set_global_batch(66);
    spec.mutable_resources()->set_ranks_per_node(1);
    spec.mutable_noise_guard()->set_calibrate(true);
    id = Submit(spec);
    job = AskedFor();
    Job(job, JobStatus::State::kRunning);
    for (int node = 0; node < 3; ++node) On(node);
    token = On(0).attempts(0).token();
    for (int node = 0; node < 3; ++node) On(node, {Running(token)});
  }
  v1::SynchronizeResponse On(int node, std::vector<Status> attempts = {}) {
    return Sync(job, std::move(attempts), absl::StrCat("life-", node), false, node);
  }
  Status EndedOn(int node, double other_load) const {
    Status ended = Ended(token);
    ended.mutable_noise()->set_node(absl::StrCat("node-", node));
    ended.mutable_noise()->set_other_load(other_load);
    return ended;
  }

  int64_t id;
  std::string job, token;
};

TEST(LifecycleNoise, TheMostDisturbedNodeIsNamed) {
  ThreeNodes w;
  for (int rank = 0; rank < 3; ++rank) w.Report(w.token, rank, 0, 10, true);
  w.On(0, {w.EndedOn(0, 0.01)});
  w.On(1, {w.EndedOn(1, 0.6)});
  w.fx = Effects();
  w.On(2, {w.EndedOn(2, 0.9)});
  ASSERT_THAT(w.fx.batch.attempts, SizeIs(1));
  const db::AttemptRow& attempt = w.fx.batch.attempts[0];
  EXPECT_EQ(attempt.cause, db::Cause::kNoisy);
  EXPECT_EQ(attempt.message,
            "node-2: during the attempt, other processes used 90% of the CPUs' time (up to 25% is normal); "
            "1 other node was disturbed, too");
  const auto noise = NoiseOfProvenance(w.fx.batch.provenance.at(0).json);
  ASSERT_THAT(noise, SizeIs(3));
  EXPECT_THAT(noise[1].reasons(), SizeIs(1)) << "all reasons are stored";
  EXPECT_GT(noise[2].severity(), noise[1].severity());
}

TEST(LifecycleNoise, TheOtherNodesLearnThatTheRanksHaveFinished) {
  ThreeNodes w;
  EXPECT_FALSE(w.On(1, {World::Running(w.token)}).attempts(0).finished());
  w.On(0, {w.EndedOn(0, 0.01)});
  const v1::SynchronizeResponse desired = w.On(1, {World::Running(w.token)});
  EXPECT_TRUE(desired.attempts(0).stop());
  EXPECT_TRUE(desired.attempts(0).finished());
  ThreeNodes failed;
  failed.On(0, {World::Ended(failed.token, 1)});
  EXPECT_TRUE(failed.On(1, {World::Running(failed.token)}).attempts(0).stop());
  EXPECT_FALSE(failed.On(1, {World::Running(failed.token)}).attempts(0).finished());
}

TEST(LifecycleNoise, AFailedAttemptKeepsItsCause) {
  Guarded w(RerunNoisy(2));
  const std::string token = w.desired.attempts(0).token();
  World::Status ended = World::Ended(token, 1, v1::Attempt::TRAINER_ERROR);
  ended.mutable_noise()->set_node("node-0");
  ended.mutable_noise()->set_other_load(0.9);
  w.fx = Effects();
  w.Sync(w.job, {ended});
  EXPECT_EQ(w.attempt().cause, db::Cause::kTrainerError);
}

}  // namespace
}  // namespace scalelab::server
