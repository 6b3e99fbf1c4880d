#include "worker/provenance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/unit/worker/temp_dir.h"
#include "worker/node_info.h"

namespace scalelab::worker {
namespace {

TEST(RedactedEnvironment, HidesWhatLooksLikeASecret) {
  const auto environment = RedactedEnvironment({"HOME=/root", "API_TOKEN=a", "my_secret=b", "DB_PASSWORD=c",
                                                "AWS_ACCESS_KEY_ID=d", "Credentials=e", "EMPTY="});
  const char* const expected =
      R"x({"HOME":"/root","API_TOKEN":"(redacted)","my_secret":"(redacted)","DB_PASSWORD":"(redacted)",)x"
      R"x("AWS_ACCESS_KEY_ID":"(redacted)","Credentials":"(redacted)","EMPTY":""})x";
  EXPECT_EQ(environment.dump(), expected);
}

TEST(WriteFileWhole, ReplacesADraftThatIsNotARegularFile) {
  TempDir dir;
  ASSERT_EQ(mkfifo((dir / "exit.json.new").c_str(), 0600), 0);
  EXPECT_TRUE(WriteFileWhole(dir / "exit.json", "{}"));
  EXPECT_EQ(ReadAll(dir / "exit.json"), "{}");
  Append(dir / "target", "untouched");
  std::filesystem::create_symlink(dir / "target", dir / "exit.json.new");
  EXPECT_TRUE(WriteFileWhole(dir / "exit.json", "[]"));
  EXPECT_EQ(ReadAll(dir / "target"), "untouched");
}

TEST(Sha256, IsTheStandardOne) {
  EXPECT_EQ(Sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(FileSha256, IsEmptyIfTheFileIsNotARegularOne) {
  TempDir dir;
  EXPECT_EQ(FileSha256(dir.path()), "");
  EXPECT_EQ(FileSha256(dir / "missing"), "");
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink(dir / "fifo", dir / "link to fifo");
  EXPECT_EQ(FileSha256(dir / "fifo"), "") << "does not wait for a writer";
  EXPECT_EQ(FileSha256(dir / "link to fifo"), "");
}

TEST(FileSha256, IsThatOfTheContent) {
  TempDir dir;
  Append(dir / "file", "abc");
  std::filesystem::create_symlink(dir / "file", dir / "link");
  EXPECT_EQ(FileSha256(dir / "file"), Sha256("abc"));
  EXPECT_EQ(FileSha256(dir / "link"), Sha256("abc"));
}

// A Processes that answers `--version` only when the test decides.
class HeldProcesses final : public Processes {
 public:
  uint64_t Start(const Job& job, Started started, Ended ended) override {
    job_ = job;
    started_ = std::move(started);
    ended_ = std::move(ended);
    return 1;
  }
  void Notify(uint64_t) override {}
  void Stop(uint64_t, absl::Duration) override {}
  Job job_;
  Started started_;
  Ended ended_;
};

TEST(Provenance, WaitsForTheTrainersVersionsAndNamesBinariesByHash) {
  TempDir dir;
  Append(dir / "trainer", "#!/bin/sh\n");
  chmod((dir / "trainer").c_str(), 0755);
  EventLoop loop;
  HeldProcesses processes;
  Provenance provenance(loop, {"", "", dir / "trainer"}, {"A=1"});
  bool known = false;
  provenance.AskTrainer(processes, [&] { known = true; });
  provenance.Record(dir.path(), {{"attempt", "t0"}});
  EXPECT_EQ(ReadAll(dir / "provenance.json"), "");

  Append(processes.job_.commands[0].output,
         R"({"name":"scalelab-trainer","version":"0.1.0","libtorch":"1.13.1"})");
  processes.ended_({});
  EXPECT_TRUE(known);
  EXPECT_EQ(provenance.node().software().at("trainer"), "0.1.0");
  const auto written = nlohmann::json::parse(ReadAll(dir / "provenance.json"));
  EXPECT_EQ(written["attempt"], "t0");
  EXPECT_EQ(written["software"]["libtorch"], "1.13.1");
  EXPECT_EQ(written["binaries"][0]["sha256"], Sha256("#!/bin/sh\n"));
  EXPECT_EQ(written["environment"]["A"], "1");
  EXPECT_GT(written["hardware"]["memory_bytes"], 0);
  EXPECT_FALSE(std::filesystem::exists(processes.job_.commands[0].output));
}

TEST(Provenance, AsksTheTrainerAlthoughTmpdirDoesNotExist) {
  TempDir dir;
  Append(dir / "trainer", "#!/bin/sh\n");
  chmod((dir / "trainer").c_str(), 0755);
  EventLoop loop;
  HeldProcesses processes;
  Provenance provenance(loop, {"", "", dir / "trainer"}, {});
  const char* const value = getenv("TMPDIR");
  const std::string before = value == nullptr ? "" : value;
  setenv("TMPDIR", (dir / "nowhere").c_str(), 1);
  provenance.AskTrainer(processes, [] {});
  if (value == nullptr) {
    unsetenv("TMPDIR");
  } else {
    setenv("TMPDIR", before.c_str(), 1);
  }
  ASSERT_EQ(processes.job_.commands.size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(processes.job_.commands[0].output));
  processes.ended_({});
  EXPECT_FALSE(provenance.asking());
}

// An event loop whose clock the test sets.
class SteppedLoop {
 public:
  void Advance(absl::Duration duration) {
    now_ += duration;
    loop.Step();
  }
  EventLoop loop{{[this] { return now_; }, [] { return uint64_t{1}; }}};

 private:
  absl::Duration now_ = absl::Seconds(1000);
};

TEST(Provenance, DoesNotWaitForATrainerThatCannotBeEnded) {
  TempDir dir;
  Append(dir / "trainer", "#!/bin/sh\n");
  chmod((dir / "trainer").c_str(), 0755);
  SteppedLoop stepped;
  HeldProcesses processes;
  Provenance provenance(stepped.loop, {"", "", dir / "trainer"}, {});
  int known = 0;
  provenance.AskTrainer(processes, [&] { ++known; });
  stepped.Advance(absl::Seconds(29));
  EXPECT_TRUE(provenance.asking());
  stepped.Advance(absl::Seconds(2));
  EXPECT_FALSE(provenance.asking());
  EXPECT_EQ(known, 1);
  processes.ended_({143, 0, true});
  EXPECT_EQ(known, 1) << "it ended in spite of that, later";
}

// A directory with a program in a git repository that has a commit, and the jobs of git, which the test ends.
class ProvenanceOfCode : public ::testing::Test {
 protected:
  void SetUp() override {
    Append(dir_ / "train.py", "print(1)\n");
    const std::string make = "cd " + dir_.path() +
                             " && git init -q && git add train.py && git -c user.name=a -c user.email=a@b "
                             "commit -qm first";
    if (system(make.c_str()) != 0) GTEST_SKIP() << "git is not installed";
    provenance_.OnDiff([this] { ++known_; });
  }
  Code CodeOf(const std::string& attempt) {
    std::filesystem::create_directories(dir_ / attempt);
    return provenance_.CodeOf(processes_, {"python3", dir_ / "train.py"}, dir_ / attempt);
  }
  const std::string& DiffPath() const { return processes_.job_.commands[0].output; }

  TempDir dir_;
  SteppedLoop stepped_;
  HeldProcesses processes_;
  Provenance provenance_{stepped_.loop, {"", "", ""}, {}};
  int known_ = 0;
};

TEST_F(ProvenanceOfCode, HasTheDifferenceWhenGitHasEnded) {
  const Code code = CodeOf("t0");
  EXPECT_TRUE(code.awaits_diff());
  EXPECT_FALSE(code.Complete().has_git_dirty());
  EXPECT_EQ(DiffPath(), dir_ / "t0/code.diff");
  Append(DiffPath(), "+print(2)\n");
  processes_.ended_({});
  EXPECT_EQ(known_, 1);
  EXPECT_FALSE(code.awaits_diff());
  const v1::CodeSnapshot complete = code.Complete();
  EXPECT_TRUE(complete.git_dirty());
  EXPECT_EQ(complete.diff_sha256(), Sha256("+print(2)\n"));
  EXPECT_EQ(complete.diff_path(), dir_ / "t0/code.diff");
  EXPECT_EQ(complete.git_commit().size(), 40u);
}

TEST_F(ProvenanceOfCode, AttemptsShareADifferenceUntilAFileOfTheCommandChanges) {
  const Code first = CodeOf("t0");
  Append(DiffPath(), "");
  processes_.ended_({});
  const Code second = CodeOf("t1");
  EXPECT_FALSE(second.awaits_diff());
  ASSERT_TRUE(second.Complete().has_git_dirty());
  EXPECT_FALSE(second.Complete().git_dirty());
  EXPECT_EQ(second.Complete().diff_path(), "");
  Append(dir_ / "train.py", "print(3)\n");
  EXPECT_TRUE(CodeOf("t2").awaits_diff());
  EXPECT_EQ(DiffPath(), dir_ / "t2/code.diff");
  Append(dir_ / "train.py", "print(4)\n");
  EXPECT_TRUE(CodeOf("t2").awaits_diff());
  EXPECT_EQ(DiffPath(), dir_ / "t2/code-2.diff") << "the first file has another difference";
}

// The program may import modules that its command does not name.
TEST_F(ProvenanceOfCode, AnOldDifferenceIsComputedAgainForTheNextAttempt) {
  const Code first = CodeOf("t0");
  Append(DiffPath(), "");
  processes_.ended_({});
  stepped_.Advance(absl::Seconds(10));
  EXPECT_FALSE(CodeOf("t1").awaits_diff());
  stepped_.Advance(absl::Seconds(1));
  const Code later = CodeOf("t1");
  EXPECT_TRUE(later.awaits_diff());
  EXPECT_EQ(DiffPath(), dir_ / "t1/code.diff");
  Append(DiffPath(), "+import new\n");
  processes_.ended_({});
  EXPECT_TRUE(later.Complete().git_dirty());
  EXPECT_EQ(later.Complete().diff_sha256(), Sha256("+import new\n"));
  EXPECT_FALSE(first.Complete().git_dirty()) << "the earlier attempt keeps its difference";
  EXPECT_EQ(CodeOf("t2").Complete().diff_path(), dir_ / "t1/code.diff");
  // An attempt that was prepared long before its launch, after others have got later differences.
  stepped_.Advance(absl::Seconds(11));
  CodeOf("t3");
  Append(DiffPath(), "+import newer\n");
  processes_.ended_({});
  stepped_.Advance(absl::Seconds(11));
  EXPECT_TRUE(CodeOf("t1").awaits_diff());
  EXPECT_EQ(DiffPath(), dir_ / "t1/code-2.diff") << "the first file has another difference";
}

TEST_F(ProvenanceOfCode, ASlowGitIsStartedLessOften) {
  CodeOf("t0");
  stepped_.Advance(absl::Seconds(11));
  EXPECT_TRUE(CodeOf("t1").awaits_diff());
  EXPECT_EQ(DiffPath(), dir_ / "t0/code.diff") << "git has not ended";
  Append(DiffPath(), "");
  processes_.ended_({});
  stepped_.Advance(absl::Seconds(20 * 11 - 11));
  EXPECT_FALSE(CodeOf("t1").awaits_diff());
  stepped_.Advance(absl::Seconds(1));
  EXPECT_TRUE(CodeOf("t1").awaits_diff());
}

TEST_F(ProvenanceOfCode, AFailureOfGitIsNoAnswer) {
  const Code failed = CodeOf("t0");
  Append(DiffPath(), "");
  processes_.ended_({128, 0, false});
  EXPECT_FALSE(failed.awaits_diff());
  EXPECT_FALSE(failed.Complete().has_git_dirty());

  Append(dir_ / "train.py", "print(3)\n");
  const Code slow = CodeOf("t1");
  Append(DiffPath(), "+pri");
  processes_.ended_({143, 0, true});
  EXPECT_TRUE(slow.Complete().git_dirty());
  EXPECT_EQ(slow.Complete().diff_sha256(), "") << "the difference is not whole";

  Append(dir_ / "train.py", "print(4)\n");
  const Code missing = CodeOf("t2");
  processes_.started_(absl::NotFoundError("no sh"));
  EXPECT_FALSE(missing.awaits_diff());
  EXPECT_FALSE(missing.Complete().has_git_dirty());
}

TEST_F(ProvenanceOfCode, DoesNotWaitForAGitThatCannotBeEnded) {
  const Code code = CodeOf("t0");
  Append(DiffPath(), "+pri");
  stepped_.Advance(absl::Seconds(29));
  EXPECT_TRUE(code.awaits_diff());
  stepped_.Advance(absl::Seconds(2));
  EXPECT_FALSE(code.awaits_diff());
  EXPECT_EQ(known_, 1);
  EXPECT_TRUE(code.Complete().git_dirty());
  EXPECT_EQ(code.Complete().diff_sha256(), "") << "the difference is not whole";
  // What was reported does not change if git ends later.
  Append(DiffPath(), "nt(2)\n");
  processes_.ended_({});
  EXPECT_EQ(known_, 1);
  EXPECT_EQ(code.Complete().diff_sha256(), "");
}

}  // namespace
}  // namespace scalelab::worker
