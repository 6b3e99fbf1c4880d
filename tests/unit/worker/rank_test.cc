// Tests the real scalelab-rank, with the environment and arguments that launchers use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/unit/worker/temp_dir.h"
#include "worker/node_info.h"

namespace scalelab::worker {
namespace {

using ::testing::HasSubstr;

constexpr char kSay[] =
    " sh -c 'echo $RANK $LOCAL_RANK $WORLD_SIZE $SCALELAB_EVENTS; echo trouble >&2; exit 5'";

int Launch(const std::string& command, const TempDir& dir) {
  const std::string clean =
      "exec env -u RANK -u LOCAL_RANK -u WORLD_SIZE -u PMIX_RANK -u SLURM_PROCID -u SLURM_LOCALID -u "
      "SLURM_NTASKS "
      "-u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_LOCAL_RANK -u OMPI_COMM_WORLD_SIZE ";
  return WEXITSTATUS(system((clean + command + " 2>" + (dir / "stderr")).c_str()));
}

TEST(ScalelabRank, TakesItsRankFromOpenMpiAndKeepsTheOutputInFiles) {
  TempDir dir;
  EXPECT_EQ(Launch("SCALELAB_ATTEMPT_DIR=" + dir.path() +
                       " OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_SIZE=4 "
                       "RANK=9 " SCALELAB_RANK +
                       kSay,
                   dir),
            5);
  EXPECT_EQ(ReadAll(dir / "rank-3.out"), "3 1 4 " + (dir / "events-3.jsonl") + "\n");
  EXPECT_EQ(ReadAll(dir / "rank-3.err"), "trouble\n");
}

TEST(ScalelabRank, DoesNotWaitForTheReaderOfAFifoThatIsTheOutput) {
  TempDir dir;
  ASSERT_EQ(mkfifo((dir / "rank-0.out").c_str(), 0600), 0);
  EXPECT_EQ(Launch("SCALELAB_ATTEMPT_DIR=" + dir.path() + " RANK=0 " SCALELAB_RANK + kSay, dir), 126);
  EXPECT_THAT(ReadAll(dir / "rank-0.err"), HasSubstr("cannot write '" + (dir / "rank-0.out") + "'"));
}

TEST(ScalelabRank, TakesItsRankFromSlurm) {
  TempDir dir;
  Launch("SCALELAB_ATTEMPT_DIR=" + dir.path() +
             " SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NTASKS=8 " SCALELAB_RANK + kSay,
         dir);
  EXPECT_EQ(ReadAll(dir / "rank-2.out"), "2 0 8 " + (dir / "events-2.jsonl") + "\n");
}

TEST(ScalelabRank, SetsTheVariablesOfTorchrunFromThePlaceOfTheRank) {
  TempDir dir;
  Launch("SCALELAB_ATTEMPT_DIR=" + dir.path() +
             " SLURM_PROCID=4 SLURM_LOCALID=0 SLURM_NTASKS=5 SCALELAB_RANKS=5 SCALELAB_RANKS_PER_NODE=2 "
             "SCALELAB_LAUNCHER=plain " SCALELAB_RANK
             " sh -c 'echo $RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK $ROLE_WORLD_SIZE "
             "$ROLE_NAME'",
         dir);
  EXPECT_EQ(ReadAll(dir / "rank-4.out"), "4 1 2 3 4 5 default\n") << "the last node has one rank";
}

TEST(ScalelabRank, TakesItsRankFromTorchrunInsideATaskOfSlurm) {
  TempDir dir;
  Launch("SCALELAB_ATTEMPT_DIR=" + dir.path() +
             " SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NTASKS=2 RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 "
             "SCALELAB_LAUNCHER=torchrun " SCALELAB_RANK +
             kSay,
         dir);
  EXPECT_EQ(ReadAll(dir / "rank-3.out"), "3 1 4 " + (dir / "events-3.jsonl") + "\n");
}

TEST(ScalelabRank, GivesTorchrunThePlaceOfItsNode) {
  TempDir dir;
  Launch("SLURM_PROCID=1 SCALELAB_RANKS=3 SCALELAB_RANKS_PER_NODE=2 " SCALELAB_RANK
         " --node sh -c 'echo $PET_NODE_RANK $PET_NPROC_PER_NODE >&2'",
         dir);
  EXPECT_EQ(ReadAll(dir / "stderr"), "1 1\n");
}

TEST(ScalelabRank, RunsOnTheCoresOfItsPlaceOnTheNode) {
  const std::vector<int> cpus = AllowedCpus();
  TempDir dir;
  const std::string last = std::to_string(cpus.back());
  Launch("SCALELAB_ATTEMPT_DIR=" + dir.path() + " OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1 " +
             "SCALELAB_RANK_CPUS=" + std::to_string(cpus.front()) + "/" + last + " " SCALELAB_RANK +
             " sh -c 'grep Cpus_allowed_list /proc/self/status; echo ${SCALELAB_RANK_CPUS-none}'",
         dir);
  EXPECT_EQ(ReadAll(dir / "rank-3.out"), "Cpus_allowed_list:\t" + last + "\nnone\n");
  for (const char* wrong : {"5/", "x/y", "0"}) {
    EXPECT_EQ(Launch("SCALELAB_ATTEMPT_DIR=" + dir.path() +
                         " OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 SCALELAB_RANK_CPUS=" + wrong +
                         " " SCALELAB_RANK " true",
                     dir),
              126)
        << wrong;
  }
  EXPECT_THAT(ReadAll(dir / "rank-1.err"), HasSubstr("SCALELAB_RANK_CPUS"));
}

TEST(ScalelabRank, SaysInTheRanksOwnFileThatTheProgramCannotBeStarted) {
  TempDir dir;
  EXPECT_EQ(
      Launch("SCALELAB_ATTEMPT_DIR=" + dir.path() + " PMIX_RANK=0 " SCALELAB_RANK " /nowhere/program", dir),
      127);
  EXPECT_THAT(ReadAll(dir / "rank-0.err"), HasSubstr("cannot start '/nowhere/program'"));
}

TEST(ScalelabRank, RefusesToGuessItsRankOrDirectory) {
  TempDir dir;
  EXPECT_EQ(
      Launch("SCALELAB_ATTEMPT_DIR=" + dir.path() + " OMPI_COMM_WORLD_RANK=x " SCALELAB_RANK " true", dir),
      2);
  EXPECT_THAT(ReadAll(dir / "stderr"), HasSubstr("OMPI_COMM_WORLD_RANK"));
  EXPECT_EQ(Launch("RANK=0 " SCALELAB_RANK " true", dir), 2);
  EXPECT_THAT(ReadAll(dir / "stderr"), HasSubstr("SCALELAB_ATTEMPT_DIR"));
}

}  // namespace
}  // namespace scalelab::worker
