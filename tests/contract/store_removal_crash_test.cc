// Tests that readers never see a partial removal of points after a process was killed during the removal, and
// that the next process completes it.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "db/retention/retention.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

class RemovalCrash : public ::testing::TestWithParam<Implementation> {};

INSTANTIATE_TEST_SUITE_P(Stores, RemovalCrash, ::testing::ValuesIn(Implementations()),
                         [](const auto& info) { return info.param.name; });

constexpr int kRuns = 3000;

void CommitStudies(Store& store) {
  for (int64_t study = 1; study <= 2; ++study) {
    WriteBatch batch;
    batch.studies = {AStudy(study)};
    batch.studies[0].state = StudyState::kSucceeded;
    batch.studies[0].finished = 1000;
    for (int i = 0; i < kRuns; ++i) {
      const int64_t id = study * 100'000 + i;
      batch.runs.push_back(ARun(id, study, id));
      batch.attempts.push_back(AnAttempt(id, id));
      batch.attempts.back().state = AttemptState::kSucceeded;
      batch.attempts.back().finished = 999;
      batch.appends.push_back(AnAppend(id, 0, 0, 30));
      batch.appends.back().columns = {AColumn("loss", 0, {1, 2, 3})};
    }
    ASSERT_TRUE(store.Commit(batch).ok());
  }
}

TEST_P(RemovalCrash, AKilledRemovalIsCompletedByTheNextProcess) {
  TemporaryDirectory directory;
  {
    auto store = GetParam().open(directory.path());
    ASSERT_TRUE(store.ok()) << store.status();
    CommitStudies(**store);
    ASSERT_TRUE(BeginRemoval(**store, Removal::kPoints, 1, 2000).ok());
  }
  std::mt19937 random(1);
  int kills = 0;
  for (bool unfinished = true; unfinished && kills < 200; ++kills) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();  // the parent has no store open
    if (child == 0) {
      auto store = GetParam().open(directory.path());
      if (!store.ok()) _exit(2);
      (void)!write(ends[1], "x", 1);
      for (absl::StatusOr<bool> more = true; more.ok() && *more;) more = (*store)->Maintain();
      pause();  // all work is done, so wait for the kill
    }
    char ready = 0;
    ASSERT_EQ(read(ends[0], &ready, 1), 1);
    // Wait longer each time before the kill, so that the removal makes progress on a slow disk too.
    usleep(std::uniform_int_distribution(0, 4000 + 2000 * kills)(random));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself with " << WEXITSTATUS(status);
    close(ends[0]);
    close(ends[1]);

    auto store = GetParam().open(directory.path());
    ASSERT_TRUE(store.ok()) << store.status();
    for (const int64_t study : {1, 2}) {
      for (const int64_t run : {0, kRuns / 2, kRuns - 1}) {
        int series = 0;
        ASSERT_TRUE((*store)->ReadPoints({study * 100'000 + run, "", {}}, [&](Series) { ++series; }).ok());
        ASSERT_EQ(series, study - 1) << "study " << study << " run " << run;
      }
    }
    unfinished = !ListUnfinished(**store, Removal::kPoints)->empty();
    if (!unfinished) {
      EXPECT_EQ(MeasurePoints(**store, 1)->points, 0);
      EXPECT_EQ(MeasurePoints(**store, 2)->points, 3 * kRuns);
    }
  }
  EXPECT_GT(kills, 1) << "the removal was complete before the first kill";
  EXPECT_LT(kills, 200);
}

}  // namespace
}  // namespace scalelab::db
