#include "worker/exit_cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"
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

// Four ranks print a warning, and one of them also an error.
class FailedRank : public ::testing::Test {
 protected:
  FailedRank() {
    for (const char* rank : {"0", "1", "2", "3"})
      Append(dir_ / absl::StrCat("rank-", rank, ".err"), "t.py:1: UserWarning: slow\n");
    Append(dir_ / "rank-2.err", "KeyError: 'lr'\n");
  }
  std::string Message(const std::string& launcher, const std::string& text, bool torchrun = false,
                      int status = 1) {
    std::ofstream(dir_ / "launcher.err") << text;
    const ExitCause judged = JudgeExit(Ended(status), launcher, 4, dir_.path(), torchrun);
    EXPECT_EQ(judged.cause, status < 128 ? Attempt::CAUSE_UNSPECIFIED : Attempt::RANK_KILLED);
    return judged.message;
  }
  const std::string kQuoted = "Rank 2 ended with status 1: KeyError: 'lr'";
  TempDir dir_;
};

TEST_F(FailedRank, IsQuotedIfMpirunNamesIt) {
  EXPECT_EQ(Message("mpirun",
                    "-----\nPrimary job  terminated normally, but 1 process returned\n"
                    "a non-zero exit code. Per user-direction, the job has been aborted.\n-----\n-----\n"
                    "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
                    "the job to be terminated. The first process to do so was:\n\n"
                    "  Process name: [[61391,1],2]\n  Exit code:    1\n-----\n"),
            kQuoted);
  EXPECT_EQ(
      Message("mpirun",
              "-----\nMPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n"
              "with errorcode 1.\n\nNOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n"),
      kQuoted);
  EXPECT_EQ(Message("mpirun",
                    "-----\nmpirun has exited due to process rank 2 with PID 0 on\n"
                    "node n0 exiting improperly. There are three reasons this could occur:\n"),
            kQuoted);
}

TEST_F(FailedRank, IsQuotedIfSrunNamesIt) {
  EXPECT_EQ(Message("srun",
                    "srun: error: n2: task 2: Exited with exit code 1\n"
                    "srun: Terminating StepId=4.1\nsrun: error: n1: task 0: Terminated\n"),
            kQuoted);
  EXPECT_EQ(Message("srun", "srun: error: n[1-2]: tasks 2-3: Exited with exit code 1\n"), kQuoted);
}

TEST_F(FailedRank, IsQuotedIfTorchrunNamesIt) {
  const std::string text =
      "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
      "============\n/opt/scalelab-rank FAILED\n------------\nFailures:\n"
      "[1]:\n  time      : 2026-11-28_09:00:01\n  host      : n1\n  rank      : 3 (local_rank: 1)\n"
      "  exitcode  : 1 (pid: 78)\n  error_file: <N/A>\n  traceback : To enable traceback see: ...\n"
      "------------\nRoot Cause (first observed failure):\n"
      "[0]:\n  time      : 2026-11-28_09:00:00\n  host      : n1\n  rank      : 2 (local_rank: 0)\n"
      "  exitcode  : 1 (pid: 77)\n  error_file: <N/A>\n  traceback : To enable traceback see: ...\n"
      "============\n";
  EXPECT_EQ(Message("torchrun", text, true), kQuoted);
  // The tasks of srun are nodes.
  EXPECT_EQ(Message("srun", "srun: error: n2: task 1: Exited with exit code 1\n" + text, true), kQuoted);
}

TEST_F(FailedRank, IsNotGuessed) {
  const std::string unknown = "A rank ended with status 1; rank 0 wrote: t.py:1: UserWarning: slow";
  EXPECT_EQ(Message("mpirun", ""), unknown);
  EXPECT_EQ(Message("srun", "srun: error: n2: task 1: Exited with exit code 1\n", true), unknown);
  EXPECT_EQ(Message("srun", "srun: error: n2: task 9: Exited with exit code 1\n"), unknown);
  EXPECT_EQ(Message("mpirun", "  Process name: [[61391,2],2]\n"), unknown) << "a job of the program";
  EXPECT_EQ(Message("mpirun", "", false, 137),
            "A rank was ended by signal 9 (Killed); rank 0 wrote: t.py:1: UserWarning: slow");
}

TEST_F(FailedRank, MayHaveWrittenNothing) {
  std::ofstream(dir_ / "rank-2.err") << "";
  EXPECT_EQ(Message("mpirun", "  Process name: [[61391,1],2]\n  Exit code:    1\n"),
            "Rank 2 ended with status 1; it wrote nothing to standard error.");
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

TEST(JudgeExit, CallsItAStorageErrorWhenTheOutputOfARankCannotBeCreated) {
  constexpr char kError[] = "scalelab-rank: cannot write '/runs/rank-1.err': Disk quota exceeded";
  TempDir dir;
  Append(dir / "rank-0.err", "");
  Append(dir / "launcher.err", absl::StrCat(kError,
                                            "\nsrun: error: n0: task 1: Exited with exit code 126\n"
                                            "srun: error: n0: task 0: Terminated\n"));
  for (const int status : {126, 143}) {  // the other rank was ended by a signal
    const ExitCause judged = JudgeExit(Ended(status), "srun", 2, dir.path());
    EXPECT_EQ(judged.cause, Attempt::STORAGE_ERROR);
    EXPECT_EQ(judged.message, absl::StrCat(kError, "."));
  }
  TempDir started;
  Append(started / "rank-0.err", "scalelab-rank: cannot write '/runs/rank-0.out': No space left on device\n");
  EXPECT_EQ(JudgeExit(Ended(126), "mpirun", 1, started.path()).cause, Attempt::STORAGE_ERROR);
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
