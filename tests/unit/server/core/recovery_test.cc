// Tests of attempts whose workers have ended. The rest of the event files determines how the attempts end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "server/core/explain.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using JobState = JobStatus::State;

// Lines of a rank's event file, ten bytes each.
ParsedBatch Lines(const std::string& token, int rank, int64_t begin, int64_t end, bool finish = false) {
  ParsedBatch batch;
  batch.token = token;
  batch.append.rank = rank;
  batch.append.begin_position = begin;
  batch.append.end_position = end;
  batch.append.begin_line = begin / 10;
  batch.append.end_line = end / 10;
  if (!finish) return batch;
  batch.append.finished = true;
  batch.append.parameter_hash = "h";
  batch.finish_metrics = {{"run/throughput", 100.0}};
  return batch;
}

// A run whose event files are read when its workers are gone.
struct Abandoned : OneRun {
  explicit Abandoned(int ranks = 1) : OneRun(ranks, /*read_events=*/true) { fx = Effects(); }

  EventRequest TakeRequest() {
    EXPECT_THAT(fx.read, SizeIs(1));
    if (fx.read.empty()) return {};
    EventRequest request = fx.read.front();
    fx.read.clear();
    return request;
  }
  void Answer(const EventRequest& request, absl::StatusOr<EventPart> part) {
    lifecycle.EventsRead(request.token, request.number, std::move(part), now, fx);
  }
  // All lines of all ranks in one part, the last of which is a finish event.
  EventPart Finished(const EventRequest& request) {
    EventPart part;
    for (const EventPlace& place : request.places)
      part.batches.push_back(Lines(token, part.next_rank++, place.position, place.position + 20, true));
    return part;
  }
  const db::RunRow& run() const { return study(id).runs[0]; }
  // The run is not live any more when its study is final.
  db::RunState final_state() const { return fx.batch.runs.back().state; }
};

TEST(Recovery, AnAttemptThatFinishedSucceedsAlthoughItsWorkerIsGone) {
  Abandoned w(2);
  w.Report(w.token, 1, 0, 10);
  w.Job(w.job, JobState::kNodeFail, "node-0 failed");
  EXPECT_EQ(w.run().state, db::RunState::kRunning) << "the files are read first";
  EXPECT_THAT(w.state.allocations, IsEmpty());
  const EventRequest request = w.TakeRequest();
  EXPECT_EQ(request.directory, absl::StrCat("/runs/1/1/", w.token));
  ASSERT_THAT(request.places, SizeIs(2));
  EXPECT_EQ(request.places[1].position, 10);
  EXPECT_EQ(request.places[1].line, 1);
  w.Answer(request, w.Finished(request));
  EXPECT_EQ(w.final_state(), db::RunState::kSucceeded);
  EXPECT_EQ(w.fx.batch.attempts.back().state, db::AttemptState::kSucceeded);
  EXPECT_EQ(w.fx.batch.attempts.back().parameter_hash, "h");
  ASSERT_THAT(w.fx.batch.summaries, SizeIs(1));
  EXPECT_EQ(w.fx.batch.summaries[0].throughput, 100);
  EXPECT_THAT(w.state.recovering, IsEmpty());
}

TEST(Recovery, AnAttemptThatDidNotFinishKeepsItsPointsAndIsTriedAgain) {
  Abandoned w;
  w.Report(w.token, 0, 0, 10);
  w.Job(w.job, JobState::kNodeFail, "node-0 failed");
  EventPart part;
  part.batches.push_back(Lines(w.token, 0, 10, 40));
  part.next_rank = 1;
  w.Answer(w.TakeRequest(), std::move(part));
  ASSERT_THAT(w.fx.batch.appends, SizeIs(2));
  EXPECT_EQ(w.fx.batch.appends.back().end_position, 40);
  EXPECT_EQ(w.fx.batch.attempts.back().cause, db::Cause::kNodeFail);
  EXPECT_EQ(w.run().state, db::RunState::kQueued);
  EXPECT_THAT(w.run().message, HasSubstr("node-0 failed"));
  w.After(1);
  EXPECT_NE(w.AskedFor(), "");
}

TEST(Recovery, PartsAreStoredOnceAndInOrder) {
  Abandoned w(2);
  w.Job(w.job, JobState::kNodeFail);
  EventPart part;
  part.batches.push_back(Lines(w.token, 0, 0, 30));
  part.batches.push_back(Lines(w.token, 1, 0, 10));
  part.next_rank = 1;
  const EventRequest first = w.TakeRequest();
  w.Answer(first, part);
  const EventRequest second = w.TakeRequest();
  EXPECT_EQ(second.first_rank, 1);
  ASSERT_THAT(second.places, SizeIs(1));
  EXPECT_EQ(second.places[0].position, 10);
  w.Answer(first, part);  // a duplicate of the answer
  EXPECT_THAT(w.fx.batch.appends, SizeIs(2));
  EXPECT_THAT(w.fx.read, IsEmpty());
  EventPart gap;
  gap.batches.push_back(Lines(w.token, 1, 20, 30));
  gap.next_rank = 2;
  w.Answer(second, std::move(gap));
  EXPECT_THAT(w.fx.batch.appends, SizeIs(2));
  EXPECT_EQ(w.TakeRequest().places[0].position, 10) << "it reads again from the durable position";
}

TEST(Recovery, NothingIsReadWhenTheWorkersHadReportedTheEndOfAllFiles) {
  Abandoned w;
  w.Sync(w.job, {World::Ended(w.token, 137, v1::Attempt::RANK_KILLED)});
  ASSERT_EQ(w.run().state, db::RunState::kRunning) << "held until the next poll";
  w.Job(w.job, JobState::kPreempted, "preempted");
  EXPECT_THAT(w.fx.read, IsEmpty());
  EXPECT_EQ(w.run().state, db::RunState::kQueued);
  EXPECT_EQ(w.fx.batch.attempts.back().cause, db::Cause::kPreempted);
}

TEST(Recovery, ReportsOfWorkersAreFencedOff) {
  Abandoned w(1);
  w.Sync(w.job, {}, "life-2");  // the worker was started again and does not know the attempt
  ASSERT_THAT(w.state.recovering, SizeIs(1));
  EXPECT_EQ(w.ReportFrom(w.job, w.token, 0, 0, 10).outcome(), v1::ReportEventsResponse::Stream::FENCED);
  EXPECT_THAT(w.fx.batch.appends, IsEmpty());
}

TEST(Recovery, AnAllocationWhoseWorkerWasRestartedServesTheNextAttemptAfterIt) {
  Abandoned w;
  EXPECT_EQ(w.Sync(w.job, {}, "life-2").attempts_size(), 0) << "the attempt is over on its nodes";
  const EventRequest request = w.TakeRequest();
  EventPart part;
  part.next_rank = 1;
  w.Answer(request, std::move(part));
  EXPECT_EQ(w.fx.batch.attempts.back().cause, db::Cause::kWorkerLost);
  w.After(1);
  const auto desired = w.Sync(w.job, {}, "life-2");
  ASSERT_EQ(desired.attempts_size(), 1);
  EXPECT_NE(desired.attempts(0).token(), w.token);
}

TEST(Recovery, WhatTheWorkerRecordedCountsMoreThanFinishEvents) {
  for (const int status : {0, 139}) {
    Abandoned w;
    w.Job(w.job, JobState::kNodeFail);
    const EventRequest request = w.TakeRequest();
    EventPart part = w.Finished(request);
    part.end = World::Ended(w.token, status);
    w.Answer(request, std::move(part));
    EXPECT_EQ(w.final_state(), status == 0 ? db::RunState::kSucceeded : db::RunState::kQueued) << status;
  }
}

TEST(Recovery, AFileWithAProblemIsNoSuccess) {
  Abandoned w;
  w.Job(w.job, JobState::kNodeFail, "node-0 failed");
  const EventRequest request = w.TakeRequest();
  EventPart part = w.Finished(request);
  part.problem = "events-0.jsonl is a FIFO, not a regular file";
  w.Answer(request, std::move(part));
  EXPECT_EQ(w.run().state, db::RunState::kQueued);
  EXPECT_EQ(w.fx.batch.attempts.back().message,
            "node-0 failed; events may be missing: events-0.jsonl is a FIFO, not a regular file");
  ASSERT_THAT(w.fx.warnings, SizeIs(1));
  EXPECT_THAT(w.fx.warnings[0], HasSubstr(w.token));
}

TEST(Recovery, AFilesystemThatHangsEndsTheAttemptWithoutTheRest) {
  Abandoned w;
  w.Job(w.job, JobState::kNodeFail, "node-0 failed");
  const EventRequest request = w.TakeRequest();
  w.After(59);
  EXPECT_EQ(w.run().state, db::RunState::kRunning);
  w.After(2);
  EXPECT_EQ(w.run().state, db::RunState::kQueued);
  EXPECT_THAT(w.fx.batch.attempts.back().message, HasSubstr("did not answer for 60 s"));
  ASSERT_THAT(w.fx.warnings, SizeIs(1));
  EXPECT_THAT(w.fx.warnings[0], HasSubstr(request.directory));
  const size_t appends = w.fx.batch.appends.size();
  w.Answer(request, w.Finished(request));  // too late
  EXPECT_EQ(w.fx.batch.appends.size(), appends);
  EXPECT_EQ(w.run().state, db::RunState::kQueued);
}

TEST(Recovery, AReadThatFailsIsRepeatedWithBackoffAndThenGivenUp) {
  Abandoned w;
  w.Job(w.job, JobState::kNodeFail);
  int reads = 0;
  for (int second = 0; second < 70; ++second) {
    for (const EventRequest& request : std::exchange(w.fx.read, {})) {
      ++reads;
      w.Answer(request, absl::UnavailableError("events-0.jsonl cannot be read: Stale file handle"));
    }
    if (second == 50) {
      EXPECT_EQ(w.run().state, db::RunState::kRunning);
    }
    w.After(1);
  }
  EXPECT_GE(reads, 5);
  EXPECT_LE(reads, 20);
  EXPECT_EQ(w.run().state, db::RunState::kQueued);
  EXPECT_THAT(w.fx.warnings.at(0), HasSubstr("Stale file handle"));
}

TEST(Recovery, AReadThatSucceedsAfterFailuresLosesNothing) {
  Abandoned w;
  w.Job(w.job, JobState::kNodeFail);
  w.Answer(w.TakeRequest(), absl::UnavailableError("Input/output error"));
  EXPECT_THAT(w.fx.read, IsEmpty()) << "it waits";
  w.After(2);
  const EventRequest request = w.TakeRequest();
  w.Answer(request, w.Finished(request));
  EXPECT_EQ(w.final_state(), db::RunState::kSucceeded);
}

// Answers requests with parts of `bytes` bytes of rank 0, `seconds` apart, and then with the end of the file.
void ReadInParts(Abandoned& w, int parts, int64_t bytes, double seconds) {
  int64_t at = 0;
  for (int i = 0; i < parts; ++i) {
    const EventRequest request = w.TakeRequest();
    ASSERT_THAT(request.places, SizeIs(1)) << i;
    ASSERT_EQ(request.places[0].position, at);
    EventPart part;
    part.batches.push_back(Lines(w.token, 0, at, at + bytes));
    w.Answer(request, std::move(part));
    at += bytes;
    w.After(seconds);
  }
}

TEST(Recovery, LongOnesContinueSlowlyAndLoseNothing) {
  for (const bool bytes : {true, false}) {
    Abandoned w;
    w.Job(w.job, JobState::kNodeFail);
    ReadInParts(w, 100, bytes ? 100'000 : 10, bytes ? 1 : 10);
    EXPECT_EQ(w.run().state, db::RunState::kRunning);
    ASSERT_THAT(w.fx.warnings, SizeIs(1)) << "it is reported once";
    EXPECT_THAT(w.fx.warnings[0], HasSubstr("the rest is read slowly"));
    EXPECT_THAT(
        ExplainRun(w.state, w.study(w.id), 0, w.now)[0].message(),
        HasSubstr(bytes ? "is being read slowly, 9 MiB so far" : "is being read slowly, 0 MiB so far"));
    const EventRequest request = w.TakeRequest();
    w.Answer(request, w.Finished(request));
    EXPECT_EQ(w.final_state(), db::RunState::kSucceeded);
    EXPECT_EQ(w.fx.batch.appends.back().end_position, bytes ? 10'000'020 : 1020);
  }
}

TEST(Recovery, LongOnesLeaveTheReadersToOthers) {
  Abandoned w;
  w.Job(w.job, JobState::kNodeFail);
  ReadInParts(w, 20, 100'000, 1);
  EventPart part;
  part.batches.push_back(Lines(w.token, 0, 2'000'000, 2'000'010));
  w.Answer(w.TakeRequest(), std::move(part));
  EXPECT_THAT(w.fx.read, IsEmpty()) << "it pauses";
  w.After(1);
  EXPECT_THAT(w.fx.read, SizeIs(1));
}

TEST(Recovery, ALongOneOfACancelledRunEndsWithCounts) {
  Abandoned w;
  w.Job(w.job, JobState::kNodeFail);
  ReadInParts(w, 20, 100'000, 1);
  w.fx.warnings.clear();
  ASSERT_TRUE(w.lifecycle.CancelRun(w.id, w.run().id, w.now, w.fx).ok());
  w.After(1);
  EXPECT_EQ(w.final_state(), db::RunState::kCancelled);
  ASSERT_THAT(w.fx.warnings, SizeIs(1));
  EXPECT_THAT(w.fx.warnings[0],
              HasSubstr("its run was cancelled while the rest of its event files was read; 2000000 bytes of "
                        "events are stored, and the files of 1 of 1 ranks were not read to their ends"));
}

TEST(Recovery, EndsIfRequestsReadNothing) {
  Abandoned w;
  w.Job(w.job, JobState::kNodeFail);
  int requests = 0;
  for (; w.run().state == db::RunState::kRunning && requests < 1000; ++requests) {
    w.Answer(w.TakeRequest(), EventPart());
    w.After(10);
  }
  EXPECT_EQ(requests, 61);
  EXPECT_EQ(w.run().state, db::RunState::kQueued);
  EXPECT_THAT(w.fx.warnings.back(), HasSubstr("nothing was read from its event files for 600 s"));
}

TEST(Recovery, WaitsForAnAgentThatIsAwayAndLosesNothing) {
  Abandoned w;
  w.Job(w.job, JobState::kNodeFail);
  int requests = 0;
  for (int second = 0; second < 36'000; ++second) {
    w.After(1);
    for (const EventRequest& request : std::exchange(w.fx.read, {})) {
      ++requests;
      w.Answer(request, absl::FailedPreconditionError("the agent of ann is not connected"));
    }
  }
  EXPECT_LT(requests, 200);
  ASSERT_EQ(w.run().state, db::RunState::kRunning);
  EXPECT_THAT(ExplainRun(w.state, w.study(w.id), 0, w.now)[0].message(),
              HasSubstr("cannot be read yet: the agent of ann is not connected"));
  w.lifecycle.TryAgain("ann", w.now);
  w.lifecycle.Tick(w.now, w.fx);
  const EventRequest request = w.TakeRequest();
  w.Answer(request, w.Finished(request));
  EXPECT_EQ(w.final_state(), db::RunState::kSucceeded);
}

TEST(Recovery, OfACancelledRunDoesNotWaitForAnAgentThatIsAway) {
  Abandoned w;
  w.Job(w.job, JobState::kNodeFail);
  w.Answer(w.TakeRequest(), absl::FailedPreconditionError("the agent of ann is not connected"));
  ASSERT_TRUE(w.lifecycle.CancelRun(w.id, w.run().id, w.now, w.fx).ok());
  for (int second = 0; second < 70; ++second) {
    w.After(1);
    for (const EventRequest& request : std::exchange(w.fx.read, {}))
      w.Answer(request, absl::FailedPreconditionError("the agent of ann is not connected"));
    if (!w.fx.batch.runs.empty() && w.final_state() == db::RunState::kCancelled) break;
  }
  ASSERT_FALSE(w.fx.batch.runs.empty());
  EXPECT_EQ(w.final_state(), db::RunState::kCancelled);
  EXPECT_THAT(w.fx.warnings.back(), HasSubstr("the agent of ann is not connected"));
}

// Starts one run in each of `count` studies, then ends all their jobs with NODE_FAIL, so that their event files are read.
void FailNodes(World& w, int count, const std::function<std::string(int)>& owner) {
  std::vector<std::string> jobs;
  for (int i = 0; i < count; ++i) {
    w.Submit(World::Spec({1}), "", owner(i));
    jobs.push_back(w.AskedFor());
    w.Job(jobs.back(), JobState::kRunning);
    const auto desired = w.Sync(jobs.back());
    w.Sync(jobs.back(), {World::Running(desired.attempts(0).token())});
  }
  w.fx = Effects();
  for (const std::string& job : jobs) w.Job(job, JobState::kNodeFail);
}

TEST(Recovery, OnlySomeAttemptsAreReadAtATime) {
  World w(/*read_events=*/true);
  FailNodes(w, 12, [](int i) { return absl::StrCat("user-", i); });
  ASSERT_THAT(w.fx.read, SizeIs(8));
  const EventRequest first = w.fx.read[0];
  EventPart part;
  part.next_rank = 1;
  w.lifecycle.EventsRead(first.token, first.number, part, w.now, w.fx);
  EXPECT_THAT(w.fx.read, SizeIs(9));
  // The other reads hang. The last three are made when those are given up.
  w.After(61);
  EXPECT_THAT(w.fx.read, SizeIs(12));
  w.After(61);
  EXPECT_THAT(w.state.recovering, IsEmpty());
}

TEST(Recovery, AFilesystemThatHangsDelaysNoReadsOfAnotherDirectoryOfRuns) {
  World w(/*read_events=*/true, /*runs_by_owner=*/true);
  FailNodes(w, 21, [](int i) { return i < 20 ? "ann" : "bob"; });
  ASSERT_THAT(w.fx.read, SizeIs(9)) << "eight in the directory of ann, which hangs";
  // Answers the last request about bob's attempt with nothing, so that another one follows.
  const auto answer_bob = [&] {
    const auto request = std::find_if(
        w.fx.read.rbegin(), w.fx.read.rend(),
        [](const EventRequest& candidate) { return absl::StartsWith(candidate.directory, "/runs/bob/"); });
    ASSERT_NE(request, w.fx.read.rend());
    w.lifecycle.EventsRead(std::string(request->token), request->number, EventPart(), w.now, w.fx);
  };
  w.After(50);
  answer_bob();
  EXPECT_THAT(w.fx.read, SizeIs(10));
  w.After(11);
  EXPECT_THAT(w.fx.read, SizeIs(18)) << "the first eight of ann are given up";
  w.After(39);
  answer_bob();
  w.After(22);
  EXPECT_THAT(w.state.recovering, SizeIs(1)) << "answers to bob are no answers to ann";
}

TEST(Recovery, ARunThatIsCancelledMeanwhileIsNotTriedAgain) {
  for (const bool finished : {false, true}) {
    Abandoned w;
    w.Job(w.job, JobState::kNodeFail);
    const EventRequest request = w.TakeRequest();
    ASSERT_TRUE(w.lifecycle.CancelRun(w.id, w.run().id, w.now, w.fx).ok());
    EventPart nothing;
    nothing.next_rank = 1;
    w.Answer(request, finished ? w.Finished(request) : nothing);
    EXPECT_EQ(w.final_state(), finished ? db::RunState::kSucceeded : db::RunState::kCancelled);
  }
}

TEST(Recovery, AStudyThatIsCancelledMeanwhileEnds) {
  Abandoned w;
  w.Job(w.job, JobState::kNodeFail);
  const EventRequest request = w.TakeRequest();
  ASSERT_TRUE(w.lifecycle.CancelStudy(w.id, w.now, w.fx).ok());
  EventPart nothing;
  nothing.next_rank = 1;
  w.Answer(request, nothing);
  EXPECT_EQ(w.final_state(), db::RunState::kCancelled);
  EXPECT_EQ(w.fx.batch.studies.back().state, db::StudyState::kCancelled);
}

TEST(Recovery, IsExplained) {
  Abandoned w;
  w.Job(w.job, JobState::kNodeFail, "node-0 failed");
  const auto reasons = ExplainRun(w.state, w.study(w.id), 0, w.now);
  ASSERT_THAT(reasons, SizeIs(1));
  EXPECT_EQ(reasons[0].message(),
            "the workers of attempt 1 are gone: node-0 failed; the rest of its event files is being read");
}

TEST(Recovery, KnowsTheHardwareAndSoftwareOfTheAttempt) {
  Abandoned w;
  v1::SynchronizeRequest request;
  request.set_node("node-0");
  request.set_instance("life-1");
  request.mutable_info()->set_cpu_model("EPYC");
  auto& running = *request.add_attempts() = World::Running(w.token);
  running.mutable_code()->add_files()->set_path("/home/ada/train.py");
  ASSERT_TRUE(w.lifecycle.Observe(w.job, request, w.now, w.fx).ok());
  ASSERT_THAT(w.fx.batch.provenance, SizeIs(1)) << "it is stored when it becomes known";
  EXPECT_THAT(w.fx.batch.provenance[0].json, HasSubstr("EPYC"));
  w.Job(w.job, JobState::kNodeFail);
  const EventRequest read = w.TakeRequest();
  EventPart part = w.Finished(read);
  part.software["framework"] = "pytorch 1.13.1";
  w.Answer(read, std::move(part));
  EXPECT_THAT(w.fx.batch.provenance.back().json, HasSubstr("EPYC"));
  EXPECT_THAT(w.fx.batch.provenance.back().json, HasSubstr("pytorch 1.13.1"));
  EXPECT_THAT(w.fx.batch.provenance.back().json, HasSubstr("/home/ada/train.py"));
}

}  // namespace
}  // namespace scalelab::server
