#include "worker/exit_cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/unit/worker/temp_dir.h"

namespace scalelab::worker {
namespace {

using ::testing::HasSubstr;
using v1::Attempt;

JobResult Ended(int status, int failed = 0) { return {status, failed, false}; }

TEST(JudgeExit, CallsASignalThatWasNotOursAKilledRank) {
  TempDir dir;
  const ExitCause judged = JudgeExit(Ended(139), "", 1, dir.path());
  EXPECT_EQ(judged.cause, Attempt::RANK_KILLED);
  EXPECT_THAT(judged.message, HasSubstr("signal 11"));
}

TEST(JudgeExit, QuotesMpirunOnWhichRankWasKilled) {
  TempDir dir;
  Append(dir / "rank-0.err", "all is well\n");
  Append(dir / "launcher.err",
         "-----\nmpirun noticed that process rank 1 with PID 0 on node n0 exited on signal 9 "
         "(Killed).\n-----\n");
  const ExitCause judged = JudgeExit(Ended(137), "mpirun", 2, dir.path());
  EXPECT_EQ(judged.cause, Attempt::RANK_KILLED);
  EXPECT_THAT(judged.message, HasSubstr("process rank 1"));
}

TEST(JudgeExit, TellsACrashOfMpirunFromThatOfARank) {
  TempDir dir;
  Append(dir / "rank-0.err", "all is well\n");
  Append(dir / "launcher.err",
         "[n0:161067] *** Process received signal ***\n[n0:161067] Signal: Segmentation fault (11)\n"
         "[n0:161067] *** End of error message ***\n");
  const ExitCause judged = JudgeExit(Ended(139), "mpirun", 2, dir.path());
  EXPECT_EQ(judged.cause, Attempt::RANK_KILLED);
  EXPECT_EQ(judged.message, "mpirun itself was ended by signal 11 (Segmentation fault); see launcher.err.");
}

TEST(JudgeExit, TakesNoReasonFromWhatMpirunSaysOfEveryFailure) {
  TempDir dir;
  Append(dir / "rank-0.err", "");
  Append(dir / "launcher.err",
         "-----\nPrimary job  terminated normally, but 1 process returned\n"
         "a non-zero exit code. Per user-direction, the job has been aborted.\n-----\n");
  EXPECT_EQ(JudgeExit(Ended(137), "mpirun", 2, dir.path()).message,
            "A rank was ended by signal 9 (Killed); it wrote nothing to standard error.");
}

TEST(JudgeExit, LeavesAnOrdinaryFailureToTheEventsAndQuotesTheRankThatFailed) {
  TempDir dir;
  Append(dir / "rank-0.err", "rank 0 is fine\n");
  Append(dir / "rank-1.err", "loading\nno such data set\n\n");
  const ExitCause judged = JudgeExit(Ended(3, 1), "", 2, dir.path());
  EXPECT_EQ(judged.cause, Attempt::CAUSE_UNSPECIFIED);
  EXPECT_EQ(judged.message, "Rank 1 ended with status 3: no such data set");
}

TEST(JudgeExit, CallsItALaunchErrorWhenMpirunEndsBeforeAnyRankRan) {
  TempDir dir;
  Append(dir / "launcher.err", "There are not enough slots available\n------\n");
  const ExitCause judged = JudgeExit(Ended(1), "mpirun", 2, dir.path());
  EXPECT_EQ(judged.cause, Attempt::LAUNCH_ERROR);
  EXPECT_THAT(judged.message, HasSubstr("not enough slots"));
}

TEST(JudgeExit, CallsItALaunchErrorWhenTheRankProgramCannotBeStarted) {
  TempDir dir;
  Append(dir / "rank-0.err", "scalelab-rank: cannot start '/x': No such file or directory\n");
  EXPECT_EQ(JudgeExit(Ended(127), "mpirun", 2, dir.path()).cause, Attempt::LAUNCH_ERROR);
}

TEST(JudgeExit, QuotesWhatSrunSaysOfTheFirstRankThatDied) {
  TempDir dir;
  Append(dir / "rank-0.err", "");
  std::ofstream(dir / "launcher.err") << "srun: error: n2: task 1: Killed\n"
                                         "srun: Terminating StepId=4.1\n"
                                         "srun: error: n1: task 0: Terminated\n";
  ExitCause judged = JudgeExit(Ended(137), "srun", 2, dir.path());
  EXPECT_EQ(judged.cause, Attempt::RANK_KILLED);
  EXPECT_THAT(judged.message, HasSubstr("n2: task 1: Killed"));

  std::ofstream(dir / "launcher.err") << "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4.2.\n"
                                         "srun: error: n1: task 0: Out Of Memory\n";
  EXPECT_EQ(JudgeExit(Ended(137), "srun", 2, dir.path()).cause, Attempt::OUT_OF_MEMORY);

  TempDir empty;
  std::ofstream(empty / "launcher.err") << "srun: error: Unable to create step for job 4: Job has expired\n";
  judged = JudgeExit(Ended(1), "srun", 2, empty.path());
  EXPECT_EQ(judged.cause, Attempt::BOOT_FAIL);
  EXPECT_THAT(judged.message, HasSubstr("Job has expired"));
  std::ofstream(empty / "launcher.err")
      << "slurmstepd: error: execve(): /opt/scalelab-rank: No such file or directory\n";
  EXPECT_EQ(JudgeExit(Ended(2), "srun", 2, empty.path()).cause, Attempt::LAUNCH_ERROR);
}

TEST(LastWords, AreShortAndValidUtf8WhateverWasWritten) {
  TempDir dir;
  Append(dir / "bad", "ok \xff\xc3\x28 \xe2\x82\xac\n   \n");
  EXPECT_EQ(LastWords(dir / "bad"), "ok   ( \xe2\x82\xac");
  Append(dir / "long", std::string(1000, 'x').append("\n"));
  EXPECT_EQ(LastWords(dir / "long").size(), 300u);
  Append(dir / "emoji", "\xF0\x9F\x98\x80 \xF0\x9F\x98\n");
  EXPECT_EQ(LastWords(dir / "emoji"), "\xF0\x9F\x98\x80    ");
  EXPECT_EQ(LastWords(dir / "absent"), "");
}

TEST(LastWords, AreEmptyForAFileThatIsNotARegularOne) {
  TempDir dir;
  std::filesystem::create_directory(dir / "directory");
  EXPECT_EQ(LastWords(dir / "directory"), "");
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(LastWords(dir / "fifo"), "");
  EXPECT_EQ(LastWords("/dev/zero"), "");
  Append(dir / "secret", "a secret\n");
  std::filesystem::create_symlink(dir / "secret", dir / "symlink");
  EXPECT_EQ(LastWords(dir / "symlink"), "");
}

TEST(JudgeExit, JudgesWithoutTheOutputFilesIfTheyAreNotRegularOnes) {
  TempDir dir;
  std::filesystem::create_directory(dir / "rank-0.err");
  ASSERT_EQ(mkfifo((dir / "launcher.err").c_str(), 0600), 0);
  EXPECT_THAT(JudgeExit(Ended(1), "", 1, dir.path()).message, HasSubstr("status 1"));
  EXPECT_THAT(JudgeExit(Ended(1), "mpirun", 1, dir.path()).message, HasSubstr("status 1"));
}

TEST(JudgeExit, CallsItALaunchErrorWhenATaskOfSrunCannotStartTorchrun) {
  TempDir dir;
  Append(dir / "launcher.err",
         "scalelab-rank: cannot start 'torchrun': No such file or directory\n"
         "srun: error: n1: task 0: Exited with exit code 127\n");
  const ExitCause judged = JudgeExit(Ended(127), "srun", 2, dir.path());
  EXPECT_EQ(judged.cause, Attempt::LAUNCH_ERROR);
  EXPECT_THAT(judged.message, HasSubstr("cannot start 'torchrun'"));
}

}  // namespace
}  // namespace scalelab::worker
