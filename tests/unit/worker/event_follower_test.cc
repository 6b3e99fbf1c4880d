#include "worker/event_follower.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <deque>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/temp_dir.h"

namespace {

int pread_error = 0;      // errno with which pread fails; 0: pread succeeds
int preads = 0;           // number of calls
bool no_inotify = false;  // watches of inotify cannot be added

}  // namespace

// These replace libc's functions in this program.
extern "C" ssize_t pread(int fd, void* data, size_t size, off_t position) {
  ++preads;
  if (pread_error == 0) return syscall(SYS_pread64, fd, data, size, position);
  errno = pread_error;
  return -1;
}
extern "C" int inotify_add_watch(int fd, const char* path, uint32_t mask) noexcept {
  if (!no_inotify) return static_cast<int>(syscall(SYS_inotify_add_watch, fd, path, mask));
  errno = ENOSPC;
  return -1;
}

namespace scalelab::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Outcome = v1::ReportEventsResponse::Stream;

constexpr absl::Duration kPatience = absl::Seconds(30);

std::string Step(int step) {
  return absl::StrCat(R"({"time":1,"event":"step","step":)", step, R"(,"metrics":{"m":)", step, "}}\n");
}
const std::string kFinish = "{\"time\":1,\"event\":\"finish\"}\n";

// A follower whose requests are inspected and answered by the test.
class EventFollowerTest : public ::testing::Test {
 protected:
  EventFollowerTest()
      : follower_(loop_,
                  [this](const v1::ReportEventsRequest& request, EventFollower::Answer answer) {
                    EXPECT_EQ(answers_.size(), requests_.size());  // one request at a time
                    EXPECT_TRUE(answers_.empty());
                    requests_.push_back(request);
                    answers_.push_back(std::move(answer));
                  },
                  {.refused = absl::ZeroDuration(), .unreadable = absl::Milliseconds(20)}) {}
  ~EventFollowerTest() override { pread_error = 0; }

  std::string File(int rank = 0) { return dir_ / absl::StrCat("events-", rank, ".jsonl"); }
  void Write(const std::string& text, int rank = 0) { Append(File(rank), text); }
  void Follow(bool fresh = true, int ranks = 1) { follower_.Follow("t", dir_.path(), 0, ranks, fresh); }
  void Finish() {
    follower_.Finish("t", [this] { drained_ = true; });
  }
  // Returns the next request.
  v1::ReportEventsRequest Next() {
    EXPECT_TRUE(loop_.RunUntil([this] { return !requests_.empty(); }, kPatience));
    if (requests_.empty()) return {};
    v1::ReportEventsRequest request = requests_.front();
    requests_.pop_front();
    return request;
  }
  void Answer(const v1::ReportEventsResponse& response) {
    auto answer = std::move(answers_.front());
    answers_.pop_front();
    answer(response);
  }
  void Fail(absl::Status status) {
    auto answer = std::move(answers_.front());
    answers_.pop_front();
    answer(std::move(status));
  }
  static v1::ReportEventsResponse State(int64_t position, int64_t line, Outcome::Outcome outcome) {
    v1::ReportEventsResponse response;
    auto& stream = *response.add_streams();
    stream.set_position(position);
    stream.set_line(line);
    stream.set_outcome(outcome);
    return response;
  }
  static v1::ReportEventsResponse Accept(const v1::ReportEventsRequest& request) {
    v1::ReportEventsResponse response;
    for (const auto& batch : request.batches()) {
      *response.add_streams() = State(batch.end_position(), batch.end_line(), Outcome::ACCEPTED).streams(0);
    }
    return response;
  }
  // Accepts all requests until everything is durable; returns all batches.
  std::vector<v1::EventBatch> DrainAll() {
    std::vector<v1::EventBatch> batches;
    while (!drained_) {
      EXPECT_TRUE(loop_.RunUntil([this] { return drained_ || !requests_.empty(); }, kPatience));
      if (requests_.empty()) break;
      const v1::ReportEventsRequest request = Next();
      batches.insert(batches.end(), request.batches().begin(), request.batches().end());
      Answer(Accept(request));
    }
    EXPECT_TRUE(drained_);
    return batches;
  }

  TempDir dir_;
  EventLoop loop_;
  std::deque<v1::ReportEventsRequest> requests_;
  std::deque<EventFollower::Answer> answers_;
  bool drained_ = false;
  EventFollower follower_;
};

TEST_F(EventFollowerTest, SendsCompleteLinesWithTheirPlacesAndKeepsAPartOfALine) {
  Follow();
  Write(Step(0) + Step(1) + kFinish + "{\"time\":1,");
  const auto request = Next();
  ASSERT_EQ(request.batches_size(), 1);
  const v1::EventBatch& batch = request.batches(0);
  EXPECT_EQ(batch.token(), "t");
  EXPECT_EQ(batch.begin_position(), 0);
  EXPECT_EQ(batch.begin_line(), 0);
  const int64_t whole = (Step(0) + Step(1) + kFinish).size();
  EXPECT_EQ(batch.end_position(), whole);
  EXPECT_EQ(batch.end_line(), 3);
  EXPECT_THAT(batch.columns(0).value(), ElementsAre(0, 1));
  EXPECT_EQ(batch.malformed_size(), 0);
  Answer(Accept(request));

  Write("\"event\":\"finish\"}\n");
  const auto rest = Next();
  EXPECT_EQ(rest.batches(0).begin_position(), whole);
  EXPECT_EQ(rest.batches(0).begin_line(), 3);
  EXPECT_EQ(rest.batches(0).events_size(), 1);
}

TEST_F(EventFollowerTest, SendsStepsWithoutAnybodyAskingAndManyRanksInOneRequest) {
  Follow(true, 3);
  Write(Step(0), 0);
  Write(Step(1), 2);
  const auto request = Next();
  ASSERT_EQ(request.batches_size(), 2);
  EXPECT_EQ(request.batches(0).rank(), 0);
  EXPECT_EQ(request.batches(1).rank(), 2);
}

TEST_F(EventFollowerTest, AsksForThePositionWhenItDoesNotKnowItAndGoesOnFromThere) {
  Write(Step(0) + Step(1) + Step(2));
  Follow(false);
  const auto question = Next();
  EXPECT_EQ(question.batches(0).begin_position(), 0);
  EXPECT_EQ(question.batches(0).end_position(), 0);
  const int64_t one = Step(0).size();
  Answer(State(one, 1, Outcome::ACCEPTED));
  const auto request = Next();
  EXPECT_EQ(request.batches(0).begin_position(), one);
  EXPECT_EQ(request.batches(0).begin_line(), 1);
  EXPECT_THAT(request.batches(0).columns(0).value(), ElementsAre(1, 2));
}

TEST_F(EventFollowerTest, GoesBackAtAGap) {
  Follow();
  Write(Step(0) + Step(1) + kFinish);
  Answer(Accept(Next()));
  Write(Step(2) + kFinish);
  EXPECT_THAT(Next().batches(0).columns(0).value(), ElementsAre(2));
  const int64_t one = Step(0).size();
  Answer(State(one, 1, Outcome::GAP));
  const auto again = Next();
  EXPECT_EQ(again.batches(0).begin_position(), one);
  EXPECT_EQ(again.batches(0).begin_line(), 1);
  EXPECT_THAT(again.batches(0).columns(0).value(), ElementsAre(1, 2));
  EXPECT_EQ(again.batches(0).end_line(), 5);
}

TEST_F(EventFollowerTest, SendsAgainWhatMayNotHaveArrived) {
  Follow();
  Write(Step(0) + kFinish);
  const auto first = Next();
  Write(Step(1));
  Fail(absl::UnavailableError("gone"));
  const auto again = Next();
  EXPECT_EQ(again.batches(0).begin_position(), 0);
  EXPECT_THAT(again.batches(0).columns(0).value(), ElementsAre(0, 1));
}

TEST_F(EventFollowerTest, SkipsAheadWhenTheFirstTryHadArrivedAfterAll) {
  Follow();
  Write(Step(0) + kFinish);
  const auto first = Next();
  Fail(absl::DeadlineExceededError("slow"));
  const auto again = Next();
  Answer(State(first.batches(0).end_position(), 2, Outcome::ACCEPTED));
  Write(Step(7));
  const auto next = Next();
  EXPECT_EQ(next.batches(0).begin_position(), first.batches(0).end_position());
  EXPECT_THAT(next.batches(0).columns(0).value(), ElementsAre(7));
}

TEST_F(EventFollowerTest, SendsNoMoreOfAnAttemptThatWasSuperseded) {
  Follow(true, 2);
  Write(Step(0) + kFinish, 0);
  Next();
  Answer(State(0, 0, Outcome::FENCED));
  Write(Step(1) + kFinish, 0);
  Write(Step(2) + kFinish, 1);
  const auto request = Next();
  ASSERT_EQ(request.batches_size(), 1);
  EXPECT_EQ(request.batches(0).rank(), 1);
  Answer(Accept(request));
  Finish();
  DrainAll();
}

TEST_F(EventFollowerTest, CountsWhatIsNoEventAndGoesOn) {
  Follow();
  Write("garbage\n" + Step(1) + "\n" + kFinish);
  const auto request = Next();
  const v1::EventBatch& batch = request.batches(0);
  ASSERT_EQ(batch.malformed_size(), 2);
  EXPECT_EQ(batch.malformed(0).line(), 0);
  EXPECT_EQ(batch.malformed(0).reason(), "is not JSON");
  EXPECT_EQ(batch.malformed(1).line(), 2);
  EXPECT_THAT(batch.columns(0).line(), ElementsAre(1));
  EXPECT_EQ(batch.end_line(), 4);
}

TEST_F(EventFollowerTest, SkipsALineThatIsFarTooLongEvenWhileItIsBeingWritten) {
  Follow();
  Write(Step(0) + std::string(300 << 10, 'x'));
  const auto first = Next();
  EXPECT_EQ(first.batches(0).end_line(), 1);
  Answer(Accept(first));
  Write(std::string(300 << 10, 'y') + "\n" + Step(2) + kFinish);
  const auto request = Next();
  const v1::EventBatch& batch = request.batches(0);
  ASSERT_EQ(batch.malformed_size(), 1);
  EXPECT_EQ(batch.malformed(0).line(), 1);
  EXPECT_EQ(batch.malformed(0).reason(), "longer than 64 KiB");
  EXPECT_THAT(batch.columns(0).line(), ElementsAre(2));
  EXPECT_EQ(batch.end_position(), static_cast<int64_t>(std::filesystem::file_size(File())));
}

TEST_F(EventFollowerTest, CallsTheLastLineCutOffOnceNobodyWritesAnyMore) {
  Follow();
  Write(Step(0) + "{\"time\":1,\"ev");
  Finish();
  const auto batches = DrainAll();
  ASSERT_EQ(batches.size(), 1u);
  ASSERT_EQ(batches[0].malformed_size(), 1);
  EXPECT_EQ(batches[0].malformed(0).line(), 1);
  EXPECT_THAT(batches[0].malformed(0).reason(), ::testing::HasSubstr("cut off"));
  EXPECT_EQ(batches[0].end_position(), static_cast<int64_t>(std::filesystem::file_size(File())));
}

TEST_F(EventFollowerTest, HasDrainedAtOnceWhenNothingWasWritten) {
  Follow();
  Finish();
  EXPECT_FALSE(drained_);  // not called from inside Finish
  EXPECT_TRUE(DrainAll().empty());
}

TEST_F(EventFollowerTest, HasDrainedOnlyWhenTheLastLineIsDurable) {
  Follow();
  Write(Step(0));
  Finish();
  const auto request = Next();
  EXPECT_FALSE(drained_);
  Fail(absl::UnavailableError("gone"));
  EXPECT_EQ(DrainAll().size(), 1u);
}

TEST_F(EventFollowerTest, TriesAtOnceWhenItIsToldThatTheCoordinatorIsBack) {
  Follow();
  Write(kFinish);
  Next();
  Fail(absl::UnavailableError("gone"));
  EXPECT_TRUE(requests_.empty());
  follower_.Retry();
  EXPECT_EQ(requests_.size(), 1u);
}

TEST_F(EventFollowerTest, DoesNotGoRoundInCirclesWithACoordinatorThatAcceptsNothing) {
  Follow();
  Write(kFinish);
  Next();
  Answer(State(0, 0, Outcome::GAP));
  EXPECT_TRUE(requests_.empty());  // retried only after a backoff
  EXPECT_EQ(Next().batches(0).events_size(), 1);
}

TEST_F(EventFollowerTest, SendsALargeFileInPiecesOfABoundedSizeWithoutLossOrDoubles) {
  std::string text;
  for (int i = 0; i < 60000; ++i) text += Step(i);
  Write(text);
  Follow();
  Finish();
  int64_t next = 0, position = 0;
  for (const v1::EventBatch& batch : DrainAll()) {
    EXPECT_LE(batch.ByteSizeLong(), 1u << 20);
    EXPECT_EQ(batch.begin_position(), position);
    position = batch.end_position();
    for (const double value : batch.columns(0).value()) EXPECT_EQ(static_cast<int64_t>(value), next++);
  }
  EXPECT_EQ(next, 60000);
  EXPECT_EQ(position, static_cast<int64_t>(text.size()));
}

TEST_F(EventFollowerTest, KeepsRequestsOfManyRanksBounded) {
  std::string text;
  for (int i = 0; i < 8000; ++i) text += Step(i);
  for (int rank = 0; rank < 8; ++rank) Write(text, rank);
  Follow(true, 8);
  Finish();
  size_t points = 0;
  while (!drained_) {
    ASSERT_TRUE(loop_.RunUntil([this] { return drained_ || !requests_.empty(); }, kPatience));
    if (requests_.empty()) break;
    const auto request = Next();
    EXPECT_LE(request.ByteSizeLong(), 1100u << 10);
    for (const auto& batch : request.batches()) points += batch.columns(0).value_size();
    Answer(Accept(request));
  }
  EXPECT_EQ(points, 64000u);
}

TEST_F(EventFollowerTest, AFileThatIsNotARegularOneIsReportedAndTheAttemptCanEnd) {
  Append(dir_ / "target", Step(0) + kFinish);
  ASSERT_EQ(mkfifo(File(0).c_str(), 0600), 0);
  std::filesystem::create_directory(File(1));
  std::filesystem::create_symlink(dir_ / "target", File(2));
  std::filesystem::create_symlink("/dev/zero", File(3));
  const char* const kinds[] = {"a FIFO", "a directory", "a symlink", "a symlink"};
  for (int rank = 0; rank < 4; ++rank) {
    const std::string token = absl::StrCat("t", rank);
    follower_.Follow(token, dir_.path(), rank, 1, true);
    bool drained = false;
    follower_.Finish(token, [&] { drained = true; });
    ASSERT_TRUE(loop_.RunUntil([&] { return drained; }, kPatience));
    EXPECT_EQ(follower_.Problem(token),
              absl::StrCat("events-", rank, ".jsonl is ", kinds[rank], ", not a regular file"));
    follower_.Forget(token);
  }
  EXPECT_TRUE(requests_.empty());
}

TEST_F(EventFollowerTest, OtherFilesGoOnWhileOneIsAFifo) {
  ASSERT_EQ(mkfifo(File(0).c_str(), 0600), 0);
  Follow(true, 2);
  Write(Step(0) + kFinish, 1);
  const auto request = Next();
  ASSERT_EQ(request.batches_size(), 1);
  EXPECT_EQ(request.batches(0).rank(), 1);
  Answer(Accept(request));
  Finish();
  DrainAll();
}

TEST_F(EventFollowerTest, ASparseFileOf200GiBIsSkippedAtOnce) {
  Write(Step(0));
  std::filesystem::resize_file(File(), uintmax_t{200} << 30);
  Write("\n" + Step(1) + kFinish);
  Follow();
  Finish();
  const auto batches = DrainAll();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_THAT(batches[0].columns(0).line(), ElementsAre(0, 2));
  ASSERT_EQ(batches[0].malformed_size(), 1);
  EXPECT_EQ(batches[0].malformed(0).reason(), "longer than 64 KiB");
  EXPECT_EQ(batches[0].end_position(), static_cast<int64_t>(std::filesystem::file_size(File())));
  EXPECT_EQ(follower_.Problem("t"), "");
}

TEST_F(EventFollowerTest, AFileThatGrowsAfterItsLastWriterEndedIsReadToItsFormerEnd) {
  Write(Step(0));
  Follow();
  Finish();
  const auto request = Next();
  Write(Step(1));
  Answer(Accept(request));
  ASSERT_TRUE(loop_.RunUntil([this] { return drained_; }, kPatience));
  EXPECT_TRUE(requests_.empty());
}

TEST_F(EventFollowerTest, ATruncatedFileIsReported) {
  Write(Step(0) + Step(1) + kFinish);
  Follow();
  Answer(Accept(Next()));
  std::filesystem::resize_file(File(), 3);
  Finish();
  DrainAll();
  EXPECT_THAT(follower_.Problem("t"), HasSubstr("events-0.jsonl was truncated"));
}

TEST_F(EventFollowerTest, AFileThatWasTruncatedAndHasGrownAgainIsReported) {
  Write(Step(0) + Step(1) + kFinish);
  Follow();
  const auto first = Next();
  std::filesystem::resize_file(File(), 0);
  Answer(Accept(first));  // reads on
  Write(Step(0) + Step(1) + kFinish + Step(2));
  Finish();
  DrainAll();
  EXPECT_THAT(follower_.Problem("t"), HasSubstr("events-0.jsonl was truncated"));
}

TEST_F(EventFollowerTest, AReplacedFileIsReported) {
  Write(Step(0) + kFinish);
  Follow();
  Answer(Accept(Next()));
  Append(dir_ / "other", Step(1));
  std::filesystem::rename(dir_ / "other", File());
  Finish();
  DrainAll();
  EXPECT_THAT(follower_.Problem("t"), HasSubstr("events-0.jsonl was replaced"));
}

TEST_F(EventFollowerTest, AReadThatFailsIsRepeatedUntilItSucceeds) {
  for (const int error : {EIO, ESTALE}) {
    pread_error = error;
    Write(Step(error) + kFinish);
    if (error == EIO) Follow();
    EXPECT_FALSE(loop_.RunUntil([this] { return !requests_.empty(); }, absl::Milliseconds(700)));
    pread_error = 0;
    const auto request = Next();
    EXPECT_THAT(request.batches(0).columns(0).value(), ElementsAre(error));
    Answer(Accept(request));
  }
  Finish();
  DrainAll();
  EXPECT_EQ(follower_.Problem("t"), "");
}

TEST_F(EventFollowerTest, AFileThatStaysUnreadableDoesNotKeepTheAttemptFromEnding) {
  pread_error = ESTALE;
  Write(Step(0));
  Follow();
  Finish();
  DrainAll();
  EXPECT_THAT(follower_.Problem("t"), HasSubstr("events-0.jsonl cannot be read: Stale file handle"));
}

TEST_F(EventFollowerTest, AStreamThatTheCoordinatorRefusesIsGivenUpAndTheOthersGoOn) {
  for (const absl::Status& refusal :
       {absl::InvalidArgumentError("bad key"), absl::InternalError("cannot be parsed"),
        absl::UnimplementedError("")}) {
    const std::string token(absl::StatusCodeToString(refusal.code()));
    std::filesystem::create_directory(dir_ / token);
    follower_.Follow(token, dir_ / token, 0, 3, true);
    for (int rank = 0; rank < 3; ++rank)
      Append(absl::StrCat(dir_ / token, "/events-", rank, ".jsonl"), Step(rank) + kFinish);
    bool drained = false;
    follower_.Finish(token, [&] { drained = true; });
    std::vector<int> accepted;
    int refused = 0;
    while (!drained) {
      ASSERT_TRUE(loop_.RunUntil([&] { return drained || !requests_.empty(); }, kPatience));
      if (requests_.empty()) break;
      const auto request = Next();
      const bool bad = std::any_of(request.batches().begin(), request.batches().end(), [](const auto& batch) {
        return batch.rank() == 1 && batch.end_position() > batch.begin_position();
      });
      if (bad) {
        ASSERT_LT(++refused, 10);
        Fail(refusal);
        continue;
      }
      for (const auto& batch : request.batches()) {
        if (batch.events_size() > 0) accepted.push_back(batch.rank());
      }
      Answer(Accept(request));
    }
    EXPECT_THAT(accepted, ::testing::UnorderedElementsAre(0, 2));
    EXPECT_THAT(follower_.Problem(token),
                HasSubstr("the coordinator refuses events-1.jsonl after line 0: " + refusal.ToString()));
    follower_.Forget(token);
  }
}

TEST_F(EventFollowerTest, ACoordinatorThatRefusesEveryRequestIsRetried) {
  Follow();
  Write(Step(0) + kFinish);
  Finish();
  for (int i = 0; i < 5; ++i) {
    Next();
    Fail(absl::InternalError("out of order"));
  }
  const auto batches = DrainAll();
  EXPECT_EQ(batches.back().events_size(), 1);
  EXPECT_EQ(follower_.Problem("t"), "");
}

// Follows files with a clock that the test sets. All requests are accepted.
class IdleFilesTest : public ::testing::Test {
 protected:
  explicit IdleFilesTest(bool inotify = true) { no_inotify = !inotify; }
  ~IdleFilesTest() override { no_inotify = false; }

  std::string File(int rank) { return dir_ / absl::StrCat("events-", rank, ".jsonl"); }
  void Write(int rank, const std::string& text = kFinish) { Append(File(rank), text); }
  // Follows files of this number of ranks, with a line each.
  void Follow(int ranks) {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    for (int rank = 0; rank < ranks; ++rank) Write(rank);
    follower_.Follow("t", dir_.path(), 0, ranks, true);
    Pass(absl::Seconds(1));
    ASSERT_EQ(lines_, ranks);
  }
  // Runs until `done` returns true, but not longer than `time`. Returns the time that has passed.
  absl::Duration Pass(
      absl::Duration time, const std::function<bool()>& done = [] { return false; }) {
    const absl::Duration begin = now_;
    while (!done()) {
      const absl::Duration next = std::max(loop_.NextStep(), now_);
      if (next > begin + time) {
        now_ = begin + time;
        break;
      }
      now_ = next;
      loop_.Step();
    }
    return now_ - begin;
  }
  // Returns the number of reads within `time`.
  int Reads(absl::Duration time) {
    const int before = preads;
    Pass(time);
    return preads - before;
  }
  absl::Duration UntilLines(int lines) {
    return Pass(kPatience, [&] { return lines_ >= lines; });
  }

  absl::Duration now_ = absl::Hours(1);
  TempDir dir_;
  EventLoop loop_{{[this] { return now_; }, [] { return uint64_t{0}; }}};
  int lines_ = 0;  // that were sent
  EventFollower follower_{loop_,
                          [this](const v1::ReportEventsRequest& request, EventFollower::Answer answer) {
                            v1::ReportEventsResponse response;
                            for (const auto& batch : request.batches()) {
                              lines_ += batch.events_size();
                              auto& stream = *response.add_streams();
                              stream.set_position(batch.end_position());
                              stream.set_line(batch.end_line());
                              stream.set_outcome(Outcome::ACCEPTED);
                            }
                            loop_.Post([answer, response] { answer(response); });
                          }};
};

class IdleFilesWithoutInotifyTest : public IdleFilesTest {
 protected:
  IdleFilesWithoutInotifyTest() : IdleFilesTest(false) {}
};

TEST_F(IdleFilesTest, AreReadLessOften) {
  constexpr int kRanks = 1000;
  Follow(kRanks);
  EXPECT_LE(Reads(absl::Seconds(10)), 6 * kRanks) << "inotify has not reported a change yet";
  EXPECT_LE(Reads(absl::Seconds(10)), 5 * kRanks);
  for (int rank = 0; rank < kRanks; ++rank) Write(rank);
  EXPECT_LE(UntilLines(2 * kRanks), absl::Milliseconds(100));
  Pass(absl::Seconds(1));
  EXPECT_LE(Reads(absl::Seconds(10)), 4 * kRanks);
  const int later = Reads(absl::Seconds(10));
  EXPECT_LE(later, 2 * kRanks);
  EXPECT_GE(later, kRanks);
}

TEST_F(IdleFilesTest, AreNotReadWhenAnotherFileChanges) {
  constexpr int kRanks = 100;
  Follow(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) Write(rank);
  Pass(absl::Seconds(60));
  const int before = preads;
  for (int i = 0; i < 100; ++i) {
    Write(7);
    Pass(absl::Milliseconds(100));
  }
  EXPECT_EQ(lines_, 2 * kRanks + 100);
  EXPECT_LE(preads - before, 2 * (kRanks - 1) + 500) << "up to five of the changed file for each change";
}

TEST_F(IdleFilesTest, EventsArriveAtOnceWithInotify) {
  Follow(2);
  for (const int seconds : {1, 10, 100}) {
    Pass(absl::Seconds(seconds));
    const int lines = lines_;
    Write(1);
    EXPECT_LE(UntilLines(lines + 1), absl::Milliseconds(50)) << seconds;
  }
}

// A write to a mapping causes no report of inotify, like a write by another node.
TEST_F(IdleFilesTest, AChangeThatInotifyDoesNotReportIsFoundWithin5Seconds) {
  Follow(1);
  Write(0, kFinish.substr(0, kFinish.size() - 1) + " ");
  Pass(absl::Seconds(100));
  for (int i = 0; i < 10; ++i) EXPECT_GE(Reads(absl::Seconds(5.1)), 1) << i;
  ASSERT_EQ(lines_, 1);
  const auto size = static_cast<off_t>(std::filesystem::file_size(File(0)));
  const int fd = open(File(0).c_str(), O_RDWR | O_CLOEXEC);
  void* mapping = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  static_cast<char*>(mapping)[size - 1] = '\n';
  EXPECT_LE(UntilLines(2), absl::Seconds(5.1));
  EXPECT_EQ(lines_, 2);
  munmap(mapping, size);
  close(fd);
}

TEST_F(IdleFilesWithoutInotifyTest, EventsArriveWithin2Seconds) {
  Follow(3);
  for (const int seconds : {1, 10, 100}) {
    Pass(absl::Seconds(seconds));
    const int lines = lines_;
    Write(1);
    EXPECT_LE(UntilLines(lines + 1), absl::Seconds(2.1)) << seconds;
    EXPECT_EQ(lines_, lines + 1);
    Pass(absl::Milliseconds(100));  // the answer causes a read too
    Write(1);
    EXPECT_LE(UntilLines(lines + 2), absl::Seconds(0.6)) << "a file with new lines is read often";
  }
}

TEST_F(IdleFilesWithoutInotifyTest, AreReadAtOnceWhenTheAttemptHasEnded) {
  Follow(1);
  Pass(absl::Seconds(100.3));
  Write(0);
  bool drained = false;
  follower_.Finish("t", [&] { drained = true; });
  EXPECT_LE(Pass(kPatience, [&] { return drained; }), absl::Milliseconds(50));
  EXPECT_TRUE(drained);
  EXPECT_EQ(lines_, 2);
}

TEST_F(EventFollowerTest, IgnoresAnAnswerForAnAttemptThatWasForgotten) {
  Follow();
  Write(kFinish);
  const auto request = Next();
  follower_.Forget("t");
  Answer(Accept(request));
  EXPECT_TRUE(requests_.empty());
}

TEST_F(EventFollowerTest, AReadThatFailsOnceWhileTheCoordinatorIsAwayLosesNothing) {
  Write(Step(0) + kFinish);
  Follow();
  Finish();
  Next();
  loop_.RunUntil([] { return false; }, absl::Milliseconds(50));  // longer than `unreadable`
  pread_error = ESTALE;
  Fail(absl::UnavailableError("gone"));  // the follower reads the same lines again
  pread_error = 0;
  const auto batches = DrainAll();
  EXPECT_FALSE(batches.empty());
  EXPECT_EQ(follower_.Problem("t"), "");
}

}  // namespace
}  // namespace scalelab::worker
