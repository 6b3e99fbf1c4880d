// Tests of the core thread, executed in steps: event files of workers that have ended, and time in which the
// service handles no calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <deque>
#include <filesystem>
#include <functional>

#include "db/sqlite_store.h"
#include "server/core/coordinator.h"
#include "server/core/outcome.h"
#include "tests/unit/server/core/forwarding_store.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// All jobs have the state that the test sets.
class UniformScheduler final : public Scheduler {
 public:
  std::string name() const override { return "uniform"; }
  Capacity capacity() const override { return {}; }
  absl::StatusOr<std::string> Submit(const JobRequest&) override { return "1"; }
  std::string Script(const JobRequest&) const override { return ""; }
  absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>& tokens) override {
    std::vector<JobStatus> jobs;
    for (const std::string& token : tokens) {
      jobs.push_back({token, "1", state, "node-0 failed"});
      jobs.back().from_outside = from_outside;
    }
    return jobs;
  }
  absl::StatusOr<ClusterView> View() override { return ClusterView{}; }
  absl::Status Cancel(const std::vector<std::string>& tokens) override {
    cancels += tokens.size();
    return absl::OkStatus();
  }
  JobStatus::State state = JobStatus::State::kRunning;
  bool from_outside = false;
  size_t cancels = 0;
};

// Keeps the requests until the test answers them.
class HeldReader final : public EventReader {
 public:
  void Read(EventRequest request, Done done) override {
    requests.push_back(std::move(request));
    answers.push_back(std::move(done));
  }
  // Answers the oldest request with one line for each rank, which is a finish event.
  void AnswerFinished() {
    EventPart part;
    for (const EventPlace& place : requests.front().places) {
      ParsedBatch& batch = part.batches.emplace_back();
      batch.append.rank = part.next_rank++;
      batch.append.begin_position = place.position;
      batch.append.end_position = place.position + 10;
      batch.append.begin_line = place.line;
      batch.append.end_line = place.line + 1;
      batch.append.columns.push_back({"train/loss", {place.line}, {0}, {1}, {0.5}});
      batch.append.finished = true;
      batch.finish_metrics.emplace();
    }
    requests.pop_front();
    Done done = std::move(answers.front());
    answers.pop_front();
    done(std::move(part));
  }
  // Answers the oldest request: nothing is left in the file of its only rank.
  void AnswerNothing() {
    EventPart part;
    part.next_rank = 1;
    requests.pop_front();
    Done done = std::move(answers.front());
    answers.pop_front();
    done(std::move(part));
  }
  // Answers the oldest request with a line of rank 0 that reports a checkpoint.
  void AnswerCheckpoint(int64_t step) {
    EventPart part;
    const EventPlace& place = requests.front().places.at(0);
    ParsedBatch& batch = part.batches.emplace_back();
    part.next_rank = 1;
    batch.append.begin_position = place.position;
    batch.append.end_position = place.position + 10;
    batch.append.begin_line = place.line;
    batch.append.end_line = place.line + 1;
    batch.checkpoint_step = step;
    requests.pop_front();
    Done done = std::move(answers.front());
    answers.pop_front();
    done(std::move(part));
  }
  std::deque<EventRequest> requests;
  std::deque<Done> answers;
};

class FullStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status Commit(const db::WriteBatch& batch) override {
    if (before_commit) before_commit();
    return full ? absl::ResourceExhaustedError("the disk is full") : ForwardingStore::Commit(batch);
  }
  bool full = false;
  std::function<void()> before_commit;
};

class Stepped : public testing::Test {
 protected:
  Stepped() {
    std::string pattern = testing::TempDir() + "/stepped-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    Restart();
  }
  ~Stepped() override {
    coordinator_.reset();
    store_.reset();
    std::filesystem::remove_all(directory_);
  }

  // Starts, or restarts after a crash. Requests in flight are lost.
  void Restart() {
    coordinator_.reset();
    store_.reset();
    reader_ = HeldReader();
    auto store = db::OpenSqliteStore({directory_ + "/test.db"});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = std::make_unique<FullStore>(*std::move(store));
    CoordinatorOptions options;
    options.runs_dir = "/runs";
    options.clock = &clock_;
    options.events = &reader_;
    options.worker_timeout = absl::Seconds(60);
    options.poll_interval = absl::Seconds(3);
    options.secret_for = [](const std::string&) { return ""; };
    options.new_token = [this] { return absl::StrCat("token-", ++tokens_); };
    coordinator_ = std::make_unique<Coordinator>(std::move(options), *store_, scheduler_);
    ASSERT_TRUE(coordinator_->StartWithoutThreads().ok());
    if (before_first_step_) before_first_step_();
    Steps();
  }
  void Steps() {
    do coordinator_->Step();
    while (coordinator_->StepScheduler());
  }
  void Advance(absl::Duration time) {
    clock_.steady += time;
    clock_.wall += time;
  }
  // Lets time pass. Executes each step when it is due, with a delay of `late`.
  void Pass(absl::Duration time, absl::Duration late = absl::ZeroDuration()) {
    for (const absl::Duration end = clock_.steady + time; clock_.steady < end;) {
      const absl::Duration next =
          std::min(std::max(coordinator_->NextStep(), clock_.steady + absl::Milliseconds(1)) + late, end);
      Advance(next - clock_.steady);
      if (serving_) coordinator_->NoteServing();
      Steps();
    }
  }
  // Submits a study with one run, and begins its attempt.
  void Begin(const v1::StudySpec& spec = World::Spec({1})) {
    coordinator_->Submit(MakeNewStudy(spec, *ExpandStudy(spec), "ann", ""),
                         [](absl::StatusOr<int64_t> id) { EXPECT_TRUE(id.ok()) << id.status(); });
    BeginAttempt();
  }
  // Begins the attempt of the next job.
  void BeginAttempt() {
    token_.clear();
    Pass(absl::Seconds(5));
    coordinator_->Read([this](const State* state) { job_ = state->allocations.begin()->second->row.token; });
    Steps();
    Synchronize();
    coordinator_->Read([this](const State* state) { token_ = state->attempts.begin()->second->row.token; });
    Steps();
    Synchronize();
  }
  void Synchronize() {
    v1::SynchronizeRequest request;
    request.set_node("n");
    request.set_instance("life");
    request.mutable_info()->set_cpu_model("EPYC");
    if (!token_.empty()) *request.add_attempts() = World::Running(token_);
    coordinator_->Synchronize(job_, request, [](absl::StatusOr<v1::SynchronizeResponse>) {});
    Steps();
  }
  // Reports steps of these durations, from step 1000 on, as the lines of rank 0 from `line` on. Each line
  // has 10 bytes.
  void ReportSteps(int64_t line, const std::vector<double>& seconds) {
    ParsedBatch batch;
    batch.token = token_;
    db::PointColumn column{"step/total_s", {}, {}, {}, seconds};
    for (size_t i = 0; i < seconds.size(); ++i) {
      column.line.push_back(line + static_cast<int64_t>(i));
      column.step.push_back(1000 + column.line.back());
      column.time.push_back(static_cast<double>(column.line.back()));
    }
    batch.append.begin_line = line;
    batch.append.end_line = line + static_cast<int64_t>(seconds.size());
    batch.append.begin_position = 10 * batch.append.begin_line;
    batch.append.end_position = 10 * batch.append.end_line;
    batch.steps = StepsOf(column.step, column.value);
    batch.append.columns.push_back(std::move(column));
    Report(std::move(batch));
  }
  // Reports the end of the attempt, whose finish event is this line of rank 0.
  void Finish(int64_t line) {
    ParsedBatch batch;
    batch.token = token_;
    batch.append.begin_line = line;
    batch.append.end_line = line + 1;
    batch.append.begin_position = 10 * line;
    batch.append.end_position = 10 * (line + 1);
    batch.append.finished = true;
    batch.finish_metrics.emplace();
    Report(std::move(batch));
    v1::SynchronizeRequest request;
    request.set_node("n");
    request.set_instance("life");
    *request.add_attempts() = World::Ended(token_);
    coordinator_->Synchronize(job_, request, [](absl::StatusOr<v1::SynchronizeResponse>) {});
    Steps();
  }
  void Report(ParsedBatch batch) {
    std::vector<ParsedBatch> batches;
    batches.push_back(std::move(batch));
    coordinator_->Report(job_, std::move(batches),
                         [](absl::StatusOr<std::vector<v1::ReportEventsResponse::Stream>>) {});
    Steps();
  }
  // Makes a commit of the study fail, so that the coordinator reloads the study.
  void FailACommit() {
    store_->full = true;
    coordinator_->SetPriority(1, 7, [](const absl::Status& status) { EXPECT_FALSE(status.ok()); });
    Steps();
    store_->full = false;
    Pass(absl::Seconds(2));
  }
  db::RunRow Run() { return *store_->GetRun(1); }
  size_t Points() {
    size_t points = 0;
    db::PointFilter filter;
    filter.attempt_id = 1;
    const absl::Status read =
        store_->ReadPoints(filter, [&](const db::Series& series) { points += series.value.size(); });
    EXPECT_TRUE(read.ok()) << read;
    return points;
  }

  class ManualClock final : public Clock {
   public:
    absl::Time Wall() const override { return wall; }
    absl::Duration Steady() const override { return steady; }
    absl::Time wall = absl::FromUnixSeconds(1'800'000'000);
    absl::Duration steady = absl::Hours(1);
  };

  std::string directory_, job_, token_;
  int tokens_ = 0;
  bool serving_ = true;
  std::function<void()> before_first_step_;
  ManualClock clock_;
  HeldReader reader_;
  UniformScheduler scheduler_;
  std::unique_ptr<FullStore> store_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(Stepped, ARunThatFinishedWhileTheCoordinatorWasAwaySucceeds) {
  Begin();
  scheduler_.state = JobStatus::State::kCompleted;
  Advance(absl::Hours(10));
  Restart();
  Pass(absl::Seconds(30));
  ASSERT_THAT(reader_.requests, SizeIs(1));
  EXPECT_EQ(Run().state, db::RunState::kRunning);
  reader_.AnswerFinished();
  Steps();
  EXPECT_EQ(Run().state, db::RunState::kSucceeded);
  EXPECT_EQ(Points(), 1u);
  const auto summary = store_->GetSummary(1);
  ASSERT_TRUE(summary.ok()) << summary.status();
  v1::NodeInfo node;
  node.set_cpu_model("EPYC");
  EXPECT_EQ(summary->fingerprint, Fingerprint({node})) << "the hardware is known after a restart";
}

TEST_F(Stepped, ARestartContinuesARecovery) {
  Begin();
  scheduler_.state = JobStatus::State::kNodeFail;
  Pass(absl::Seconds(20));
  ASSERT_THAT(reader_.requests, SizeIs(1));
  scheduler_.state = JobStatus::State::kUnknown;  // Slurm has forgotten the job
  Restart();
  ASSERT_THAT(reader_.requests, SizeIs(1));
  reader_.AnswerFinished();
  Steps();
  EXPECT_EQ(Run().state, db::RunState::kSucceeded);
}

TEST_F(Stepped, ARestartKeepsTheCauseOfTheEnd) {
  Begin();
  scheduler_.state = JobStatus::State::kNodeFail;
  Pass(absl::Seconds(20));
  Restart();
  Pass(absl::Seconds(70));  // the filesystem hangs
  const auto attempts = store_->ListAttempts(1);
  ASSERT_TRUE(attempts.ok()) << attempts.status();
  EXPECT_EQ(attempts->at(0).state, db::AttemptState::kFailed);
  EXPECT_EQ(attempts->at(0).cause, db::Cause::kNodeFail);
  EXPECT_THAT(attempts->at(0).message, HasSubstr("node-0 failed; events may be missing"));
}

// The coordinator restarts while the cancelled job is ending. The new process does not know of the cancel.
TEST_F(Stepped, ARestartKeepsTheReasonOfACancel) {
  Begin();
  Pass(absl::Seconds(65));
  const size_t cancels = scheduler_.cancels;
  ASSERT_GT(cancels, 0u);
  Restart();
  Pass(absl::Seconds(10));
  EXPECT_GT(scheduler_.cancels, cancels) << "the earlier process may have ended before it cancelled the job";
  scheduler_.state = JobStatus::State::kCancelled;
  scheduler_.from_outside = true;
  Pass(absl::Seconds(20));
  ASSERT_THAT(reader_.requests, SizeIs(1));
  reader_.AnswerNothing();
  Steps();
  const auto attempts = store_->ListAttempts(1);
  ASSERT_TRUE(attempts.ok()) << attempts.status();
  EXPECT_EQ(attempts->at(0).cause, db::Cause::kWorkerLost);
  EXPECT_THAT(attempts->at(0).message, HasSubstr("was silent"));
}

TEST_F(Stepped, ARestartKeepsTheReasonOfAStop) {
  v1::StudySpec spec = World::Spec({1});
  spec.mutable_resources()->set_gpus_per_rank(2);
  spec.mutable_limits()->set_gpu_hours(1);
  Begin(spec);
  const auto stops = [&] { return store_->ListAttempts(1)->at(0).state == db::AttemptState::kStopping; };
  for (int i = 0; i < 45 && !stops(); ++i) {
    Pass(absl::Seconds(50));
    Synchronize();
  }
  ASSERT_TRUE(stops()) << "half an hour uses up the limit";
  Restart();
  v1::SynchronizeRequest ended;
  ended.set_node("n");
  ended.set_instance("life");
  *ended.add_attempts() = World::Ended(token_, 143);
  coordinator_->Synchronize(job_, ended, [](absl::StatusOr<v1::SynchronizeResponse>) {});
  Steps();
  EXPECT_EQ(Run().state, db::RunState::kCancelled);
  EXPECT_THAT(Run().message, HasSubstr("limits.gpu_hours is 1"));
}

TEST_F(Stepped, ACancelOfAFailedCommitIsNotLost) {
  Begin();
  Pass(absl::Seconds(55));
  store_->full = true;
  Pass(absl::Seconds(10));
  EXPECT_EQ(scheduler_.cancels, 0u);
  store_->full = false;
  Pass(absl::Seconds(20));
  EXPECT_GT(scheduler_.cancels, 0u);
}

TEST_F(Stepped, ThroughputFromStepsIncludesThoseBeforeARestart) {
  v1::StudySpec spec = World::Spec({1});
  auto& fixed = *spec.mutable_fixed()->mutable_fields();
  fixed["engine"].set_string_value("custom");
  fixed["command"].mutable_list_value()->add_values()->set_string_value("true");
  Begin(spec);
  ReportSteps(0, {0.5, 0.5, 0.5});
  Restart();
  Synchronize();
  ReportSteps(3, {4, 4});
  FailACommit();
  Finish(5);
  ASSERT_EQ(Run().state, db::RunState::kSucceeded) << Run().message;
  const auto summary = store_->GetSummary(1);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_NEAR(summary->throughput.value_or(0), 64 / 0.5, 2);
  EXPECT_EQ(Run().message, "");
}

// The median of the remaining steps could contradict the throughput that the engine reports.
TEST_F(Stepped, ARestartForgetsTheStepsOfOtherEngines) {
  Begin();
  ReportSteps(0, {0.5, 0.5, 0.5});
  Restart();
  Synchronize();
  ReportSteps(3, {4, 4});
  Finish(5);
  ASSERT_EQ(Run().state, db::RunState::kSucceeded) << Run().message;
  EXPECT_EQ(store_->GetSummary(1)->reported_step, std::nullopt);
}

TEST_F(Stepped, ARestartKeepsTheMetricsOfTheFinishEvent) {
  Begin();
  ParsedBatch batch;
  batch.token = token_;
  batch.append.end_line = 1;
  batch.append.end_position = 10;
  batch.append.finished = true;
  batch.append.columns.push_back({"run/throughput", {0}, {-1}, {1}, {100}});
  batch.append.columns.push_back({"bucket/backward_s", {0}, {-1}, {1}, {0.5}});
  batch.append.columns.push_back({"train/loss", {0}, {-1}, {1}, {2}});
  batch.finish_metrics = {{"run/throughput", 100.0}, {"bucket/backward_s", 0.5}};
  Report(std::move(batch));
  Restart();
  v1::SynchronizeRequest request;
  request.set_node("n");
  request.set_instance("life");
  *request.add_attempts() = World::Ended(token_);
  coordinator_->Synchronize(job_, request, [](absl::StatusOr<v1::SynchronizeResponse>) {});
  Steps();
  ASSERT_EQ(Run().state, db::RunState::kSucceeded) << Run().message;
  const auto summary = store_->GetSummary(1);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->throughput, 100);
  EXPECT_THAT(summary->metrics, testing::Contains(testing::Pair("bucket/backward_s", 0.5)));
  EXPECT_FALSE(summary->metrics.contains("train/loss"));
}

// A time limit ends the attempt of the second run while the coordinator does not run. The first run has used
// a part of the time of the allocation, so the second run may need less than the limit.
TEST_F(Stepped, ATimeLimitThatEarlierRunsHaveUsedIsNoFailureAfterARestart) {
  Begin(World::Spec({1}, 2));
  v1::SynchronizeRequest ended;
  ended.set_node("n");
  ended.set_instance("life");
  *ended.add_attempts() = World::Ended(token_, 1);
  coordinator_->Synchronize(job_, ended, [](absl::StatusOr<v1::SynchronizeResponse>) {});
  Steps();
  ASSERT_EQ(Run().state, db::RunState::kFailed);
  coordinator_->Read([this](const State* state) { token_ = state->attempts.begin()->second->row.token; });
  Steps();
  Synchronize();
  ASSERT_EQ(store_->GetRun(2)->state, db::RunState::kRunning);

  scheduler_.state = JobStatus::State::kTimeout;
  Restart();
  Pass(absl::Seconds(20));
  ASSERT_THAT(reader_.requests, SizeIs(1));
  reader_.AnswerNothing();
  Steps();
  const auto run = store_->GetRun(2);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->state, db::RunState::kQueued) << run->message;
  EXPECT_EQ(run->cause, db::Cause::kTimeout);
  EXPECT_THAT(run->message, HasSubstr("it will be tried again"));
}

TEST_F(Stepped, ATimeLimitThatOneRunHasUsedIsAFailureAfterARestart) {
  Begin();
  scheduler_.state = JobStatus::State::kTimeout;
  Restart();
  Pass(absl::Seconds(20));
  ASSERT_THAT(reader_.requests, SizeIs(1));
  reader_.AnswerNothing();
  Steps();
  EXPECT_EQ(Run().state, db::RunState::kFailed);
  EXPECT_EQ(Run().cause, db::Cause::kTimeout);
}

TEST_F(Stepped, ARestartKeepsTheCheckpointsOfEarlierAttempts) {
  v1::StudySpec spec = World::Spec({1});
  (*spec.mutable_fixed()->mutable_fields())["checkpoint_every_steps"].set_number_value(10);
  Begin(spec);
  for (const db::RunState after : {db::RunState::kQueued, db::RunState::kFailed}) {
    scheduler_.state = JobStatus::State::kTimeout;
    Pass(absl::Seconds(20));
    ASSERT_THAT(reader_.requests, SizeIs(1));
    reader_.AnswerCheckpoint(10);
    Steps();
    EXPECT_EQ(Run().state, after) << Run().message;
    if (after == db::RunState::kFailed) break;
    scheduler_.state = JobStatus::State::kRunning;
    Restart();
    BeginAttempt();
  }
  EXPECT_EQ(Run().attempts, 2) << "the second attempt began again with the first step";
}

TEST_F(Stepped, WhatAFailedCommitLosesIsReadAgain) {
  Begin();
  scheduler_.state = JobStatus::State::kNodeFail;
  Pass(absl::Seconds(20));
  store_->full = true;
  for (int i = 0; i < 3; ++i) {
    ASSERT_THAT(reader_.requests, SizeIs(1)) << i;
    EXPECT_EQ(reader_.requests.front().places.at(0).position, 0);
    reader_.AnswerFinished();
    Steps();
    Pass(absl::Seconds(2));
  }
  store_->full = false;
  ASSERT_THAT(reader_.requests, SizeIs(1));
  reader_.AnswerFinished();
  Steps();
  EXPECT_EQ(Run().state, db::RunState::kSucceeded);
  EXPECT_EQ(Points(), 1u);
}

TEST_F(Stepped, ACommitThatFailsBeforeTheReadBeginsNoRecovery) {
  Begin();
  store_->full = true;
  scheduler_.state = JobStatus::State::kNodeFail;
  Pass(absl::Seconds(20));
  EXPECT_THAT(reader_.requests, IsEmpty());
  store_->full = false;
  Pass(absl::Seconds(20));
  EXPECT_THAT(reader_.requests, SizeIs(1));
}

TEST_F(Stepped, ASilentWorkerIsCancelled) {
  Begin();
  Pass(absl::Seconds(55));
  EXPECT_EQ(scheduler_.cancels, 0u);
  Pass(absl::Seconds(10));
  EXPECT_GT(scheduler_.cancels, 0u);
}

TEST_F(Stepped, AWorkerIsNotSilentWhileTheProcessIsStopped) {
  Begin();
  Pass(absl::Seconds(30));
  Advance(absl::Hours(1));
  Pass(absl::Seconds(25));
  EXPECT_EQ(scheduler_.cancels, 0u);
  Pass(absl::Seconds(10));
  EXPECT_GT(scheduler_.cancels, 0u);
}

TEST_F(Stepped, AProcessThatIsStoppedRightAfterItsStartConcludesNothing) {
  Begin();
  before_first_step_ = [this] { Advance(absl::Hours(1)); };
  Restart();
  Pass(absl::Seconds(55));
  EXPECT_EQ(scheduler_.cancels, 0u);
  scheduler_.state = JobStatus::State::kNodeFail;
  Pass(absl::Seconds(10));
  ASSERT_THAT(reader_.requests, SizeIs(1));
  Restart();
  EXPECT_THAT(reader_.requests, SizeIs(1)) << "the event files are still read";
}

TEST_F(Stepped, ShortDelaysOfStepsCountInSum) {
  Begin();
  // The process gets little time: each step is late, and four fifths of the time are delays.
  Pass(absl::Seconds(270), /*late=*/absl::Seconds(4));
  EXPECT_EQ(scheduler_.cancels, 0u);
  Pass(absl::Seconds(120), /*late=*/absl::Seconds(4));
  EXPECT_GT(scheduler_.cancels, 0u);
}

TEST_F(Stepped, SlowCommitsCountInSum) {
  Begin();
  const absl::Duration begin = clock_.steady;
  store_->before_commit = [this] { Advance(absl::Milliseconds(900)); };
  // Each commit makes the coordinator wait for 0.9 s, and no worker reports meanwhile.
  for (int i = 0; i < 100; ++i) {
    const v1::StudySpec spec = World::Spec({1});
    coordinator_->Submit(MakeNewStudy(spec, *ExpandStudy(spec), "ann", ""), [](absl::StatusOr<int64_t>) {});
    coordinator_->NoteServing();
    Steps();
  }
  EXPECT_GT(clock_.steady - begin, absl::Seconds(85));
  EXPECT_EQ(scheduler_.cancels, 0u);
}

TEST_F(Stepped, AWorkerIsNotSilentWhileTheServiceTakesNoCalls) {
  Begin();
  Pass(absl::Seconds(30));
  serving_ = false;
  Pass(absl::Hours(1));
  EXPECT_EQ(scheduler_.cancels, 0u);
  serving_ = true;
  Pass(absl::Seconds(20));
  EXPECT_EQ(scheduler_.cancels, 0u);
  Pass(absl::Seconds(20));
  EXPECT_GT(scheduler_.cancels, 0u);
}

}  // namespace
}  // namespace scalelab::server
