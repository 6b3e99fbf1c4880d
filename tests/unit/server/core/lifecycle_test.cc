#include "server/core/lifecycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/accounting.h"
#include "server/core/coordinator.h"
#include "server/core/outcome.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using JobState = JobStatus::State;
using testing::HasSubstr;

TEST(Lifecycle, RunsAStudyFromSubmitToSuccessInOneAllocation) {
  World w;
  const int64_t id = w.Submit(World::Spec({1, 2}, 2));
  const std::string job = w.AskedFor();
  ASSERT_FALSE(job.empty());
  w.Job(job, JobState::kRunning);
  auto desired = w.Sync(job);
  for (int position = 0; position < 4; ++position) {
    ASSERT_EQ(desired.attempts_size(), 1) << position;
    EXPECT_EQ(w.run_state(id, position), db::RunState::kRunning);
    w.Sync(job, {World::Running(desired.attempts(0).token())});
    desired = w.Finish(job, desired);
    EXPECT_EQ(w.run_state(id, position), db::RunState::kSucceeded);
  }
  EXPECT_EQ(desired.attempts_size(), 0);
  EXPECT_TRUE(desired.terminate());
  EXPECT_EQ(w.study(id).row.state, db::StudyState::kSucceeded);
  EXPECT_EQ(w.AskedFor(), "");
  EXPECT_EQ(w.fx.batch.summaries.size(), 4u);
}

TEST(Lifecycle, TheAllocationIsAsLargeAsTheLargestCell) {
  World w;
  w.Submit(World::Spec({1, 4, 2}));
  w.lifecycle.Plan(w.now, w.fx);
  ASSERT_EQ(w.fx.submit.size(), 1u);
  EXPECT_EQ(w.fx.submit[0].nodes * w.fx.submit[0].ranks_per_node, 4);
}

TEST(Lifecycle, SeedOfARepeatIsTheStudysSeedPlusTheRepeat) {
  World w;
  auto spec = World::Spec({1}, 2);
  spec.set_seed(42);
  w.Submit(spec);
  const std::string job = w.AskedFor();
  auto desired = w.Sync(job);
  EXPECT_EQ(desired.attempts(0).spec().seed(), 42);
  EXPECT_EQ(w.Finish(job, desired).attempts(0).spec().seed(), 43);
}

// Runs a study with one run of this engine, whose ranks report `software`. Returns its
// provenance and fingerprint.
std::pair<std::string, std::string> TrainedWith(const std::string& engine,
                                                const std::map<std::string, std::string>& software) {
  World w;
  auto spec = World::Spec({1});
  (*spec.mutable_fixed()->mutable_fields())["engine"].set_string_value(engine);
  w.Submit(spec);
  const std::string job = w.AskedFor();
  const auto desired = w.Sync(job);
  const auto& attempt = desired.attempts(0);
  EXPECT_EQ(attempt.has_environment(), engine != "native/ddp");
  EXPECT_EQ(attempt.environment().venv(), engine == "native/ddp" ? "" : "/frameworks/pytorch");
  w.Report(attempt.token(), 0, 0, 10, true);
  auto ended = World::Ended(attempt.token());
  ended.mutable_software()->insert(software.begin(), software.end());
  w.Sync(job, {ended});
  return {w.fx.batch.provenance.at(0).json, w.fx.batch.summaries.at(0).fingerprint};
}

TEST(Lifecycle, WhatAFrameworkTrainedWithIsPartOfProvenanceAndFingerprint) {
  const auto old = TrainedWith("pytorch/ddp", {{"framework", "pytorch 1.13.1"}});
  EXPECT_THAT(old.first, HasSubstr(R"("framework":"pytorch 1.13.1")"));
  EXPECT_EQ(TrainedWith("pytorch/ddp", {{"framework", "pytorch 1.13.1"}}).second, old.second);
  EXPECT_NE(TrainedWith("pytorch/ddp", {{"framework", "pytorch 2.4.0"}}).second, old.second);
  EXPECT_NE(TrainedWith("native/ddp", {}).second, old.second);
}

TEST(Lifecycle, TheCodeOfAProgramIsPartOfTheProvenanceButNotOfTheFingerprint) {
  const auto run = [](const std::string& commit) {
    World w;
    auto spec = World::Spec({1});
    (*spec.mutable_fixed()->mutable_fields())["engine"].set_string_value("pytorch/ddp");
    w.Submit(spec);
    const std::string job = w.AskedFor();
    const auto desired = w.Sync(job);
    const std::string& token = desired.attempts(0).token();
    auto running = World::Running(token);
    running.mutable_code()->add_files()->set_path("/home/ada/train.py");
    running.mutable_code()->set_git_commit(commit);
    w.Sync(job, {running});
    EXPECT_EQ(CodeOfProvenance(w.fx.batch.provenance.back().json)->git_commit(), commit);
    w.Report(token, 0, 0, 10, true);
    auto ended = World::Ended(token);
    *ended.mutable_code() = running.code();
    ended.mutable_code()->set_git_dirty(true);
    w.Sync(job, {ended});
    EXPECT_TRUE(CodeOfProvenance(w.fx.batch.provenance.back().json)->git_dirty());
    return w.fx.batch.summaries.at(0).fingerprint;
  };
  EXPECT_EQ(run("abcd"), run("ef01"));
}

// A node with GPUs also runs programs that train on its CPU.
TEST(Lifecycle, RunsOnDifferentDevicesAreNeverOnOneCurve) {
  const auto gpu = TrainedWith("native/ddp", {{"device", "NVIDIA H100 80GB HBM3"}});
  EXPECT_THAT(gpu.first, HasSubstr(R"("device":"NVIDIA H100 80GB HBM3")"));
  EXPECT_EQ(TrainedWith("native/ddp", {{"device", "NVIDIA H100 80GB HBM3"}}).second, gpu.second);
  EXPECT_NE(TrainedWith("native/ddp", {{"device", "AMD EPYC 9654"}}).second, gpu.second);
}

// The worker reports the software of scalelab-trainer, which it detects only after its first report. A custom
// program does not use this software.
TEST(Lifecycle, SoftwareThatTheEngineDoesNotRunIsNotPartOfTheFingerprint) {
  const auto fingerprint = [](const std::string& engine, bool known) {
    World w;
    w.info.set_cpu_model("epyc");
    if (known) (*w.info.mutable_software())["libtorch"] = "2.4.0";
    auto spec = World::Spec({1});
    (*spec.mutable_fixed()->mutable_fields())["engine"].set_string_value(engine);
    w.Submit(spec);
    const std::string job = w.AskedFor();
    const auto desired = w.Sync(job);
    w.Finish(job, desired);
    return w.fx.batch.summaries.at(0).fingerprint;
  };
  EXPECT_EQ(fingerprint("pytorch/ddp", true), fingerprint("pytorch/ddp", false));
  EXPECT_NE(fingerprint("native/ddp", true), fingerprint("native/ddp", false));
}

TEST(Lifecycle, AnImpossibleResultIsRefusedWithAReasonInTheRunsMessage) {
  OneRun w;
  ParsedBatch batch;
  batch.token = w.token;
  batch.append.end_position = 10;
  batch.append.end_line = 1;
  batch.append.finished = true;
  batch.append.parameter_hash = "h";
  batch.finish_metrics = {{"run/throughput", -5.0}, {"run/epoch_seconds", 3.0}};
  for (int64_t step = 1000; step < 1005; ++step) batch.steps.emplace_back(step, *StepTimes::BucketOf(0.5));
  std::vector<ParsedBatch> batches;
  batches.push_back(std::move(batch));
  w.fx = Effects();
  w.lifecycle.Ingest(w.job, std::move(batches), w.fx);
  w.Sync(w.job, {World::Ended(w.token)});
  ASSERT_EQ(w.fx.batch.summaries.size(), 1u);
  EXPECT_EQ(w.fx.batch.summaries[0].throughput, std::nullopt);
  EXPECT_EQ(w.fx.batch.summaries[0].epoch_seconds, 3.0);
  EXPECT_NEAR(w.fx.batch.summaries[0].reported_step.value_or(0), 0.5, 0.005);
  EXPECT_EQ(w.study(w.id).runs[0].message,
            "run/throughput of rank 0 is -5, which is not above 0; the value is not used");
}

TEST(Lifecycle, AUsersProgramWithoutThroughputGetsAMessage) {
  const auto message = [](const std::string& engine) {
    World w;
    auto spec = World::Spec({1});
    auto& fixed = *spec.mutable_fixed()->mutable_fields();
    fixed["engine"].set_string_value(engine);
    if (engine == "custom") fixed["command"].mutable_list_value()->add_values()->set_string_value("true");
    const int64_t id = w.Submit(spec);
    const std::string job = w.AskedFor();
    const std::string token = w.Sync(job).attempts(0).token();
    ParsedBatch batch;
    batch.token = token;
    batch.append.end_position = 10;
    batch.append.end_line = 1;
    batch.append.finished = true;
    batch.append.parameter_hash = "h";
    batch.finish_metrics = {{"run/epoch_seconds", 3.0}};
    std::vector<ParsedBatch> batches;
    batches.push_back(std::move(batch));
    w.lifecycle.Ingest(job, std::move(batches), w.fx);
    w.Sync(job, {World::Ended(token)});
    EXPECT_EQ(w.run_state(id, 0), db::RunState::kSucceeded);
    return w.study(id).runs[0].message;
  };
  EXPECT_EQ(message("custom"),
            "no throughput, so the curve has no point: the program reported neither run/throughput nor "
            "step/total_s");
  EXPECT_EQ(message("pytorch/ddp"), "");
}

TEST(Lifecycle, OneRequestIdMakesOneStudyAndRefusesAnother) {
  World w;
  const int64_t first = w.Submit(World::Spec({1}), "request");
  EXPECT_EQ(w.Submit(World::Spec({1}), "request"), first);
  EXPECT_NE(w.Submit(World::Spec({1})), first);
  EXPECT_NE(w.Submit(World::Spec({1}), "request", "bob"), first);
  const auto other = w.TrySubmit(World::Spec({2}), "request");
  EXPECT_TRUE(absl::IsAlreadyExists(other.status())) << other.status();
}

TEST(Lifecycle, SummaryTakesTheLargestMemoryAndTheFirstRanksThroughput) {
  OneRun w(2);
  w.fx = Effects();
  w.Finish(w.job, w.desired);
  ASSERT_EQ(w.fx.batch.summaries.size(), 1u);
  EXPECT_EQ(w.fx.batch.summaries[0].throughput, 100.0);
  EXPECT_EQ(w.fx.batch.summaries[0].peak_memory, 11.0);
}

TEST(Lifecycle, ARankThatWasKilledIsTriedAgainUnderANewToken) {
  OneRun w;
  w.Sync(w.job, {World::Ended(w.token, 137, v1::Attempt::RANK_KILLED)});
  EXPECT_TRUE(w.fx.poll);
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kRunning) << "the whole job may be ending";
  w.Job(w.job, JobState::kRunning);
  w.After(1);
  const auto again = w.Sync(w.job, {});
  ASSERT_EQ(again.attempts_size(), 1);
  EXPECT_NE(again.attempts(0).token(), w.token);
  EXPECT_EQ(w.study(w.id).runs[0].attempts, 2);
  EXPECT_EQ(w.Report(w.token, 0, 0, 10).outcome(), v1::ReportEventsResponse::Stream::FENCED);
}

TEST(Lifecycle, ARunFailsWhenItsRetriesAreUsedUp) {
  OneRun w;
  std::string token = w.token;
  for (int attempt = 1; attempt <= 3; ++attempt) {
    w.Sync(w.job, {World::Ended(token, 137, v1::Attempt::RANK_KILLED)});
    w.Job(w.job, JobState::kRunning);
    w.After(2);
    const auto desired = w.Sync(w.job);
    if (attempt < 3) token = desired.attempts(0).token();
  }
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kFailed);
  EXPECT_EQ(w.study(w.id).row.state, db::StudyState::kFailed);
}

TEST(Lifecycle, AnErrorOfTheTrainerIsNotTriedAgain) {
  OneRun w;
  w.Sync(w.job, {World::Ended(w.token, 1)});
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kFailed);
  EXPECT_EQ(w.study(w.id).runs[0].cause, db::Cause::kTrainerError);
  EXPECT_THAT(w.study(w.id).runs[0].message, HasSubstr("last words"));
}

TEST(Lifecycle, TheFirstErrorOfARankIsTheCause) {
  OneRun w;
  int64_t position = 0;
  for (const char* kind : {"out_of_memory", "communication"}) {
    ParsedBatch batch;
    batch.token = w.token;
    batch.append.begin_position = position;
    batch.append.end_position = position += 10;
    batch.append.error_kind = kind;
    batch.append.error_message = kind;
    std::vector<ParsedBatch> batches;
    batches.push_back(std::move(batch));
    w.lifecycle.Ingest(w.job, std::move(batches), w.fx);
  }
  w.Sync(w.job, {World::Ended(w.token, 1)});
  EXPECT_EQ(w.study(w.id).runs[0].cause, db::Cause::kOutOfMemory);
  EXPECT_EQ(w.study(w.id).runs[0].message, "rank 0: out_of_memory");
}

TEST(Lifecycle, ExitWithoutFinishIsAFailure) {
  OneRun w(2);
  w.Report(w.token, 0, 0, 10, true);
  w.Sync(w.job, {World::Ended(w.token)});
  EXPECT_EQ(w.study(w.id).runs[0].cause, db::Cause::kNoFinish);
  EXPECT_THAT(w.study(w.id).runs[0].message, HasSubstr("rank 1"));
}

TEST(Lifecycle, RanksThatEndWithDifferentParametersAreAFailure) {
  OneRun w(2);
  w.Report(w.token, 0, 0, 10, true, "aaaa");
  w.Report(w.token, 1, 0, 10, true, "bbbb");
  w.Sync(w.job, {World::Ended(w.token)});
  EXPECT_EQ(w.study(w.id).runs[0].cause, db::Cause::kParametersDiffer);
}

TEST(Lifecycle, ASilentWorkersRunIsNotTriedAgainBeforeItsAllocationIsOver) {
  OneRun w;
  w.After(60);
  EXPECT_TRUE(w.Cancelled(w.job));
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kRunning);  // its processes may still be alive
  EXPECT_EQ(w.AskedFor(), "");
  w.Job(w.job, JobState::kCancelled);
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kQueued);
  EXPECT_EQ(w.study(w.id).runs[0].cause, db::Cause::kWorkerLost);
  w.After(1);
  EXPECT_NE(w.AskedFor(), "");
}

TEST(Lifecycle, ASilentWorkerIsLostAfter15MinutesByDefault) {
  EXPECT_EQ(CoordinatorOptions().worker_timeout, absl::Minutes(15));
  OneRun w;
  w.lifecycle.Configure(Policy(), LifecycleOptions().worker_timeout);
  w.After(15 * 60 - 1);
  EXPECT_FALSE(w.Cancelled(w.job));
  w.After(2);
  EXPECT_TRUE(w.Cancelled(w.job));
}

TEST(Lifecycle, ASilentWorkersJobThatSomebodyElseHadCancelledIsNotOurs) {
  OneRun w;
  w.After(60);
  ASSERT_TRUE(w.Cancelled(w.job));
  JobStatus status{w.job, "job-1", JobState::kCancelled, "cancelled by user id 7"};
  status.from_outside = true;
  w.lifecycle.JobsPolled({status}, w.now, w.now, w.fx);
  EXPECT_EQ(w.study(w.id).runs[0].cause, db::Cause::kAllocationCancelled);
  EXPECT_EQ(w.AskedFor(), "");
}

TEST(Lifecycle, NobodyWasSilentWhileTheCoordinatorStoodStill) {
  OneRun w;
  w.now += 60'000'000;
  w.lifecycle.MoveTimeouts(60'000'000);
  w.lifecycle.Tick(w.now, w.fx);
  EXPECT_FALSE(w.Cancelled(w.job));
}

TEST(Lifecycle, AWorkerThatSpeaksStaysAlive) {
  OneRun w;
  for (int i = 0; i < 10; ++i) {
    w.After(20);
    w.Sync(w.job, {World::Running(w.token)});
  }
  EXPECT_FALSE(w.Cancelled(w.job));
}

TEST(Lifecycle, ARestartedWorkerThatDoesNotKnowTheAttemptHasLostIt) {
  OneRun w;
  EXPECT_EQ(w.Sync(w.job, {}, "life-2").attempts_size(), 0);
  w.After(1);
  const auto desired = w.Sync(w.job, {}, "life-2");
  ASSERT_EQ(desired.attempts_size(), 1);
  EXPECT_NE(desired.attempts(0).token(), w.token);
  EXPECT_EQ(w.study(w.id).runs[0].attempts, 2);
}

TEST(Lifecycle, EachEndOfAJobHasItsOwnCause) {
  const std::vector<std::pair<JobState, db::Cause>> kCases = {
      {JobState::kTimeout, db::Cause::kTimeout},
      {JobState::kPreempted, db::Cause::kPreempted},
      {JobState::kNodeFail, db::Cause::kNodeFail},
      {JobState::kOutOfMemory, db::Cause::kOutOfMemory},
      {JobState::kBootFail, db::Cause::kBootFail},
      {JobState::kDeadline, db::Cause::kDeadline},
      {JobState::kCancelled, db::Cause::kAllocationCancelled},
      {JobState::kFailed, db::Cause::kWorkerLost}};
  for (const auto& [job, cause] : kCases) {
    OneRun w;
    w.Job(w.job, job);
    EXPECT_EQ(w.study(w.id).runs[0].cause, cause) << static_cast<int>(job);
  }
}

TEST(Lifecycle, CancellingAStudyCancelsWhatWaitsAndStopsWhatRuns) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}, 3));
  const std::string job = w.AskedFor();
  const auto desired = w.Sync(job);
  const std::string token = desired.attempts(0).token();
  w.Sync(job, {World::Running(token)});
  ASSERT_TRUE(w.lifecycle.CancelStudy(id, w.now, w.fx).ok());
  EXPECT_EQ(w.run_state(id, 1), db::RunState::kCancelled);
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kRunning);
  const auto stop = w.Sync(job, {World::Running(token)});
  EXPECT_TRUE(stop.attempts(0).stop());
  auto ended = World::Ended(token, 143);
  ended.set_stopped(true);
  const auto after = w.Sync(job, {ended});
  EXPECT_TRUE(after.terminate());
  EXPECT_EQ(w.study(id).row.state, db::StudyState::kCancelled);
  EXPECT_EQ(w.AskedFor(), "");
}

TEST(Lifecycle, CancellingAStudyThatWaitsForItsAllocationEndsTheJob) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  ASSERT_TRUE(w.lifecycle.CancelStudy(id, w.now, w.fx).ok());
  EXPECT_TRUE(w.Cancelled(job));
  EXPECT_EQ(w.study(id).row.state, db::StudyState::kCancelled);
  EXPECT_TRUE(w.state.pending.empty());
  w.lifecycle.JobSubmitted(job, std::string("17"), w.now, w.fx);
  w.Job(job, JobState::kUnknown);
  EXPECT_TRUE(w.state.pending.empty());
  EXPECT_TRUE(w.state.allocations.empty());
}

TEST(Lifecycle, OnlyAFinalStudyCanBeDeleted) {
  OneRun w;
  EXPECT_TRUE(absl::IsFailedPrecondition(w.lifecycle.DeleteStudy(w.id, w.fx)));
  EXPECT_TRUE(w.fx.batch.deleted_studies.empty());
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(w.lifecycle.DeleteStudy(w.id, w.fx))) << "its run is being stopped";
  w.Sync(w.job, {World::Ended(w.token, 143)});
  EXPECT_TRUE(w.lifecycle.DeleteStudy(w.id, w.fx).ok());
  EXPECT_EQ(w.fx.batch.deleted_studies, std::vector<int64_t>{w.id});
}

TEST(Lifecycle, AStopThatDoesNotHappenEndsTheAllocation) {
  OneRun w;
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  for (int i = 0; i < 3; ++i) {
    w.After(10);
    w.Sync(w.job, {World::Running(w.token)});
  }
  EXPECT_TRUE(w.Cancelled(w.job));
  w.Job(w.job, JobState::kCancelled);
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kCancelled);
}

TEST(Lifecycle, CancellingOneRunLetsTheOthersRun) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}, 2));
  const std::string job = w.AskedFor();
  const std::string token = w.Sync(job).attempts(0).token();
  w.Sync(job, {World::Running(token)});
  ASSERT_TRUE(w.lifecycle.CancelRun(id, w.study(id).runs[0].id, w.now, w.fx).ok());
  auto ended = World::Ended(token, 143);
  ended.set_stopped(true);
  const auto next = w.Sync(job, {ended});
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kCancelled);
  ASSERT_EQ(next.attempts_size(), 1);
  w.Finish(job, next);
  EXPECT_EQ(w.study(id).row.state, db::StudyState::kCancelled);
}

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

TEST(Lifecycle, CancellingAQueuedRunEndsItsPendingJob) {
  World w;
  auto spec = World::Spec({1}, 6);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  const int64_t id = w.Submit(spec);
  w.lifecycle.Plan(w.now, w.fx);
  ASSERT_EQ(w.fx.submit.size(), 4u);
  const std::string job = w.fx.submit[0].token;
  ASSERT_TRUE(w.lifecycle.CancelRun(id, w.study(id).runs[0].id, w.now, w.fx).ok());
  EXPECT_TRUE(w.Cancelled(job));
  w.lifecycle.Plan(w.now, w.fx);
  EXPECT_EQ(w.fx.submit.size(), 5u) << "its place is free";
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

TEST(Lifecycle, ASuspendedJobIsNotCancelledForSilence) {
  OneRun w;
  for (int minute = 0; minute < 60; ++minute) {
    JobStatus status{w.job, "job-1", JobState::kRunning, "it is suspended"};
    status.suspended = true;
    w.lifecycle.JobsPolled({status}, w.now, w.now, w.fx);
    w.After(20);
  }
  EXPECT_FALSE(w.Cancelled(w.job));
  w.After(60);
  EXPECT_TRUE(w.Cancelled(w.job));
}

// A study with many runs in one allocation, for tests of what happens when they fail.
struct ManyRuns : World {
  explicit ManyRuns(int repeats) {
    auto spec = Spec({1}, repeats);
    spec.mutable_retry()->set_max(0);
    id = Submit(spec);
    job = AskedFor();
    Job(job, JobState::kRunning);
    desired = Sync(job);
  }
  // Ends the current attempt.
  void Fail(v1::Attempt::Cause cause = v1::Attempt::CAUSE_UNSPECIFIED) {
    desired = Sync(job, {Ended(desired.attempts(0).token(), 1, cause)});
  }
  int64_t id;
  std::string job;
  v1::SynchronizeResponse desired;
};

TEST(Lifecycle, AStudyWhoseFirstRunsAllFailTheSameWayIsPausedUntilItIsResumed) {
  ManyRuns w(20);
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(w.desired.attempts_size(), 1) << i;
    w.Fail();
  }
  EXPECT_EQ(w.desired.attempts_size(), 0);
  EXPECT_TRUE(w.desired.terminate());
  EXPECT_EQ(w.study(w.id).row.pause_reason,
            "its first 5 runs failed in the same way: exit status 1: last words");
  EXPECT_EQ(w.study(w.id).queued.size(), 15u);
  w.Job(w.job, JobState::kCompleted);
  w.After(1000);
  EXPECT_EQ(w.AskedFor(), "");
  ASSERT_TRUE(w.lifecycle.ResumeStudy(w.id, w.now, w.fx).ok());
  w.job = w.AskedFor();
  w.Job(w.job, JobState::kRunning);
  w.desired = w.Sync(w.job);
  for (int i = 0; i < 14; ++i) {
    ASSERT_EQ(w.desired.attempts_size(), 1) << i;
    w.Fail();
  }
  EXPECT_EQ(w.study(w.id).queued.size(), 0u) << "it is not paused again for the same reason";
}

TEST(Lifecycle, AStudyThatHasSucceededOnceIsNotPaused) {
  ManyRuns w(10);
  w.desired = w.Finish(w.job, w.desired);
  for (int i = 0; i < 9; ++i) w.Fail();
  EXPECT_EQ(w.study(w.id).row.state, db::StudyState::kFailed);
}

TEST(Lifecycle, AStudyWhoseFilesCannotBeWrittenIsPausedAndLosesNoRun) {
  ManyRuns w(4);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(w.desired.attempts_size(), 1) << i;
    w.Fail(v1::Attempt::STORAGE_ERROR);
  }
  EXPECT_THAT(w.study(w.id).row.pause_reason, HasSubstr("3 attempts in a row could not write their files: "));
  EXPECT_EQ(w.study(w.id).counts[static_cast<int>(db::RunState::kQueued)], 4);
  w.Job(w.job, JobState::kCompleted);
  ASSERT_TRUE(w.lifecycle.ResumeStudy(w.id, w.now, w.fx).ok());
  w.job = w.AskedFor();
  w.Job(w.job, JobState::kRunning);
  w.desired = w.Sync(w.job);
  w.Finish(w.job, w.desired);
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kSucceeded);
}

TEST(Lifecycle, FailedRunsAreRetriedOnRequestWithNewRetries) {
  ManyRuns w(3);
  w.Fail();
  w.desired = w.Finish(w.job, w.desired);
  ASSERT_TRUE(w.lifecycle.Retry(w.id, 0, nullptr, 0, w.now, w.fx).ok());
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kQueued);
  EXPECT_EQ(w.run_state(w.id, 1), db::RunState::kSucceeded);
  EXPECT_EQ(w.study(w.id).runs[0].uncounted, 1);
  const absl::Status nothing = w.lifecycle.Retry(w.id, 0, nullptr, 0, w.now, w.fx);
  EXPECT_EQ(nothing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(nothing.message(), "studies/1 has no failed run; nothing is changed");
}

TEST(Lifecycle, AStudyThatHasChangedSinceItWasReadIsNotRetried) {
  World w;
  EXPECT_EQ(w.lifecycle.Retry(7, 0, std::make_unique<LiveStudy>(), -1, w.now, w.fx).code(),
            absl::StatusCode::kAborted);
}

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

TEST(Lifecycle, AllocationsThatAPauseCancelsAreNoFailures) {
  World w;
  auto spec = World::Spec({1}, 9);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  spec.mutable_retry()->set_max(0);
  const int64_t id = w.Submit(spec);
  std::set<std::string> ended;
  for (int failure = 0; failure < 5; ++failure) {
    w.lifecycle.Plan(w.now, w.fx);
    std::string job;
    for (const JobRequest& request : w.fx.submit) {
      if (!ended.contains(request.token)) job = request.token;
    }
    ended.insert(job);
    w.Job(job, JobState::kRunning);
    const auto desired = w.Sync(job);
    ASSERT_EQ(desired.attempts_size(), 1);
    w.Sync(job, {World::Ended(desired.attempts(0).token(), 1)});
    w.Job(job, JobState::kCompleted);
  }
  ASSERT_NE(w.study(id).row.pause_reason, "");
  for (const JobRequest& request : std::vector<JobRequest>(w.fx.submit)) {
    if (ended.contains(request.token)) continue;
    EXPECT_TRUE(w.Cancelled(request.token));
    w.lifecycle.JobSubmitted(request.token, std::string("17"), w.now, w.fx);
    w.Job(request.token, JobState::kCancelled);
  }
  EXPECT_TRUE(w.study(id).failed_allocations.empty());
  EXPECT_TRUE(w.state.pending.empty());
}

TEST(Lifecycle, APausedStudyThatIsCancelledIsNotPausedAnyMore) {
  ManyRuns w(20);
  for (int i = 0; i < 5; ++i) w.Fail();
  ASSERT_NE(w.study(w.id).row.pause_reason, "");
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  EXPECT_EQ(w.study(w.id).row.state, db::StudyState::kCancelled);
  EXPECT_EQ(w.study(w.id).row.pause_reason, "");
}

TEST(Lifecycle, OneFailureAfterManyPreemptionsIsRetried) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  for (int i = 0; i < 20; ++i) {
    w.After(400);
    w.Job(w.AskedFor(), i < 19 ? JobState::kPreempted : JobState::kFailed);
  }
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kQueued);
}

TEST(Lifecycle, PerRunAllocationServesItsRunAndIsHandedBack) {
  World w;
  auto spec = World::Spec({1}, 2);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  const int64_t id = w.Submit(spec);
  w.lifecycle.Plan(w.now, w.fx);
  ASSERT_EQ(w.fx.submit.size(), 2u);
  const std::string job = w.fx.submit[0].token;
  const auto after = w.Finish(job, w.Sync(job));
  EXPECT_TRUE(after.terminate());
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kSucceeded);
  EXPECT_EQ(w.run_state(id, 1), db::RunState::kQueued);
}

TEST(Lifecycle, EventsAreTakenOnceInOrderAndAGapIsRefused) {
  using Stream = v1::ReportEventsResponse::Stream;
  OneRun w;
  w.fx = Effects();
  EXPECT_EQ(w.Report(w.token, 0, 0, 100).outcome(), Stream::ACCEPTED);
  EXPECT_EQ(w.Report(w.token, 0, 0, 100).outcome(), Stream::ACCEPTED);  // resent: dropped
  EXPECT_EQ(w.fx.batch.appends.size(), 1u);
  const auto gap = w.Report(w.token, 0, 150, 200);
  EXPECT_EQ(gap.outcome(), Stream::GAP);
  EXPECT_EQ(gap.position(), 100);
  EXPECT_EQ(w.Report(w.token, 0, 50, 150).outcome(), Stream::GAP);  // overlaps: must start at the position
  EXPECT_EQ(w.Report(w.token, 0, 100, 150).outcome(), Stream::ACCEPTED);
  EXPECT_EQ(w.Report(w.token, 7, 0, 10).outcome(), Stream::FENCED);
  EXPECT_EQ(w.Report("nobody", 0, 0, 10).outcome(), Stream::FENCED);
  EXPECT_EQ(w.fx.batch.appends.size(), 2u);
}

TEST(Lifecycle, AWorkerOfAnAllocationThatIsOverIsTurnedAway) {
  OneRun w;
  w.Job(w.job, JobState::kFailed);
  const absl::Status seen = w.lifecycle.Observe(w.job, {}, w.now, w.fx);
  EXPECT_TRUE(absl::IsUnauthenticated(seen)) << seen;
}

TEST(Lifecycle, ALeavingWorkerGetsNothingNew) {
  World w;
  const int64_t id = w.Submit(World::Spec({1}));
  const std::string job = w.AskedFor();
  EXPECT_EQ(w.Sync(job, {}, "life-1", true).attempts_size(), 0);
  EXPECT_EQ(w.run_state(id, 0), db::RunState::kQueued);
}

TEST(Reports, OfAnAttemptComeFromItsOwnAllocationOnly) {
  OneRun w;
  const int64_t other = w.Submit(World::Spec({1}));
  ASSERT_NE(other, w.id);
  const std::string foreign = w.AskedFor();
  ASSERT_NE(foreign, w.job);
  w.Job(foreign, JobStatus::State::kRunning);
  using Stream = v1::ReportEventsResponse::Stream;
  EXPECT_EQ(w.ReportFrom(foreign, w.token, 0, 0, 10, true).outcome(), Stream::FENCED);
  EXPECT_EQ(w.ReportFrom("ended", w.token, 0, 0, 10, true).outcome(), Stream::FENCED);
  EXPECT_TRUE(w.fx.batch.appends.empty());
  EXPECT_EQ(w.ReportFrom(w.job, w.token, 0, 0, 10).outcome(), Stream::ACCEPTED);
}

TEST(Reports, OfANodeThatTheAllocationDoesNotHaveAreRefused) {
  OneRun w;
  for (const int node : {-1, 1, 2'000'000'000}) {
    v1::SynchronizeRequest request;
    request.set_node_index(node);
    request.set_instance("life-1");
    *request.add_attempts() = World::Ended(w.token);
    EXPECT_TRUE(absl::IsInvalidArgument(w.lifecycle.Observe(w.job, request, w.now, w.fx))) << node;
  }
  EXPECT_EQ(w.state.allocation(w.state.allocation_by_token.at(w.job))->workers.size(), 1u);
  EXPECT_EQ(w.run_state(w.id, 0), db::RunState::kRunning);
}

TEST(RequestIds, OfTwoOwnersNeverCollide) {
  World w;
  const auto submit = [&](const std::string& owner, const std::string& request_id) {
    const v1::StudySpec spec = World::Spec({1});
    return *w.lifecycle.Submit(MakeNewStudy(spec, *ExpandStudy(spec), owner, request_id), w.now, w.fx);
  };
  EXPECT_NE(submit("a\nb", "c"), submit("a", "b\nc"));
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

TEST(Lifecycle, ARequestIdOfADeletedStudyMakesANewStudy) {
  World w;
  const int64_t first = w.Submit(World::Spec({1}), "request");
  ASSERT_TRUE(w.lifecycle.CancelStudy(first, w.now, w.fx).ok());
  ASSERT_TRUE(w.lifecycle.DeleteStudy(first, w.fx).ok());
  EXPECT_NE(w.Submit(World::Spec({1}), "request"), first);
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

TEST(Lifecycle, ASilentWorkerIsNamedAlthoughItsJobEndsSomeTimeAfterTheCancel) {
  OneRun w;
  w.After(60);
  ASSERT_TRUE(w.Cancelled(w.job));
  w.Job(w.job, JobState::kRunning);  // it is still ending
  w.Job(w.job, JobState::kCancelled, "cancelled by this service");
  EXPECT_EQ(w.study(w.id).runs[0].cause, db::Cause::kWorkerLost);
  EXPECT_THAT(w.study(w.id).runs[0].message, HasSubstr("its worker on node-0 was silent for 60 s"));
}

}  // namespace
}  // namespace scalelab::server
