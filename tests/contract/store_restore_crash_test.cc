// Tests that readers do not see a study whose restore was killed, and that the next process deletes its rows.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "db/sqlite/sqlite.h"
#include "tests/contract/archive_fixture.h"

namespace scalelab::db {
namespace {

class RestoreCrash : public ::testing::TestWithParam<Implementation> {};

INSTANTIATE_TEST_SUITE_P(Stores, RestoreCrash, ::testing::ValuesIn(Implementations()),
                         [](const auto& info) { return info.param.name; });

constexpr int kRuns = 250;

void MaintainAll(Store& store) {
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) more = store.Maintain();
  ASSERT_TRUE(more.ok()) << more.status();
}

int64_t CountRows(Store& store) {
  int64_t rows = 0;
  EXPECT_TRUE(store
                  .ReadRows([&](Database& db) {
                    for (const ArchiveTable& table : ArchiveTables())
                      rows += *db.QueryInt(std::string("SELECT count(*) FROM ") + table.name);
                    return absl::OkStatus();
                  })
                  .ok());
  return rows;
}

TEST_P(RestoreCrash, AKilledRestoreLeavesNoStudy) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/archive";
  std::vector<std::string> rows;
  {
    auto store = GetParam().open(directory.path());
    ASSERT_TRUE(store.ok()) << store.status();
    WriteBatch study = AFinalStudy(1, kRuns, 1);
    study.notices.clear();  // the restore of a pending one changes it
    ASSERT_TRUE((*store)->Commit(study).ok());
    const OpenFile file(path);
    ASSERT_TRUE(WriteArchive(**store, 1, TestSeal, file.fd()).ok());
    rows = Rows(file.fd());
    WriteBatch batch;
    batch.deleted_studies = {1};
    ASSERT_TRUE((*store)->Commit(batch).ok());
    MaintainAll(**store);
  }
  std::mt19937 random(1);
  int kills = 0, interrupted = 0;
  for (bool restored = false; !restored && kills < 200; ++kills) {
    const int64_t first_id = 1'000'000 * (kills + 1);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();  // the parent has no store open
    if (child == 0) {
      auto store = GetParam().open(directory.path());
      if (!store.ok()) _exit(2);
      const int fd = open(path.c_str(), O_RDONLY);
      const absl::StatusOr<ArchiveHead> head = CheckArchive(fd);
      if (!head.ok()) _exit(3);
      Restore restore(**store, fd, *head, IdsFrom(first_id));
      absl::StatusOr<bool> more = true;
      for (int step = 0; step < kills && more.ok() && *more; ++step) more = restore.Step();
      (void)!write(ends[1], "x", 1);
      // The process is killed during this step, or after it.
      if (more.ok() && *more) more = restore.Step();
      pause();
    }
    char ready = 0;
    ASSERT_EQ(read(ends[0], &ready, 1), 1);
    usleep(std::uniform_int_distribution(0, 2000)(random));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself with " << WEXITSTATUS(status);
    close(ends[0]);
    close(ends[1]);

    auto store = GetParam().open(directory.path());
    ASSERT_TRUE(store.ok()) << store.status();
    restored = (*store)->GetStudy(first_id).ok();
    interrupted += !restored && CountRows(**store) > 0;
    ASSERT_EQ((*store)->ListStudies(0, 10, {})->size(), restored ? 1u : 0u);
    if (restored) {
      const OpenFile again(directory.path() + "/again");
      ASSERT_TRUE(WriteArchive(**store, first_id, TestSeal, again.fd()).ok());
      EXPECT_EQ(Rows(again.fd()), rows);
    } else {
      MaintainAll(**store);
      ASSERT_EQ(CountRows(**store), 0);
    }
  }
  EXPECT_GT(interrupted, 1) << "no kill came in the middle of a restore";
  EXPECT_LT(kills, 200);
}

}  // namespace
}  // namespace scalelab::db
