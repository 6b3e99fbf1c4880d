#include "server/core/lifecycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Lifecycle, TheTextOfAStudyFileIsCommittedWithItsStudy) {
  World w;
  const v1::StudySpec spec = World::Spec({1});
  NewStudy study = MakeNewStudy(spec, *ExpandStudy(spec), "ann", "");
  study.study_file = "study: test  # mine\n";
  const absl::StatusOr<int64_t> id = w.lifecycle.Submit(std::move(study), w.now, w.fx);
  ASSERT_TRUE(id.ok()) << id.status();
  ASSERT_EQ(w.fx.batch.study_files.size(), 1u);
  EXPECT_EQ(w.fx.batch.study_files[0].study_id, *id);
  EXPECT_EQ(w.fx.batch.study_files[0].text, "study: test  # mine\n");
  EXPECT_TRUE(w.lifecycle.Submit(MakeNewStudy(spec, *ExpandStudy(spec), "ann", ""), w.now, w.fx).ok());
  EXPECT_EQ(w.fx.batch.study_files.size(), 1u) << "a study without a text has no row";
}

TEST(Lifecycle, ARequestIdOfADeletedStudyMakesANewStudy) {
  World w;
  const int64_t first = w.Submit(World::Spec({1}), "request");
  ASSERT_TRUE(w.lifecycle.CancelStudy(first, w.now, w.fx).ok());
  ASSERT_TRUE(w.lifecycle.DeleteStudy(first, w.fx).ok());
  EXPECT_NE(w.Submit(World::Spec({1}), "request"), first);
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
