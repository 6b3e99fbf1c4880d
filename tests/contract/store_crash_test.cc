// Tests that a process killed at any moment loses no acknowledged commit and duplicates nothing.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

class StoreCrash : public ::testing::TestWithParam<Implementation> {};

INSTANTIATE_TEST_SUITE_P(Stores, StoreCrash, ::testing::ValuesIn(Implementations()),
                         [](const auto& info) { return info.param.name; });

// Commits study after study, each with a run, an attempt and three points. Writes each `id` to `out` after
// its commit was acknowledged.
[[noreturn]] void CommitUntilKilled(const Implementation& implementation, const std::string& directory,
                                    int out) {
  absl::StatusOr<std::unique_ptr<Store>> store = implementation.open(directory);
  if (!store.ok()) _exit(2);
  int64_t id = (*store)->Load()->last_study_id;
  while (true) {
    ++id;
    WriteBatch batch;
    batch.studies = {AStudy(id)};
    batch.cells = {ACell(id, id)};
    batch.runs = {ARun(id, id, id)};
    batch.attempts = {AnAttempt(id, id)};
    batch.appends = {AnAppend(id, 0, 0, 30)};
    batch.appends[0].columns = {AColumn("loss", 0, {1.0 * static_cast<double>(id), 2, 3})};
    if (!(*store)->Commit(batch).ok()) _exit(3);
    if (write(out, &id, sizeof(id)) != sizeof(id)) _exit(4);
  }
}

TEST_P(StoreCrash, KilledProcessesLoseAndDoubleNothingAcknowledged) {
  TemporaryDirectory directory;
  std::mt19937 random(1);
  int64_t acknowledged = 0, checked = 0;
  for (int iteration = 0; iteration < 40; ++iteration) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();  // the parent has no store open
    if (child == 0) {
      close(ends[0]);
      CommitUntilKilled(GetParam(), directory.path(), ends[1]);
    }
    close(ends[1]);
    // Kill the process some microseconds after one of the first acknowledgements, so that the kill hits any
    // point of the next commit.
    const int wanted = std::uniform_int_distribution(1, 20)(random);
    int64_t id = 0;
    for (int i = 0; i < wanted && read(ends[0], &id, sizeof(id)) == sizeof(id); ++i) acknowledged = id;
    usleep(std::uniform_int_distribution(0, 2000)(random));
    kill(child, SIGKILL);
    while (read(ends[0], &id, sizeof(id)) == sizeof(id)) acknowledged = id;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself with " << WEXITSTATUS(status);

    absl::StatusOr<std::unique_ptr<Store>> store = GetParam().open(directory.path());
    ASSERT_TRUE(store.ok()) << store.status();
    const int64_t last = (*store)->Load()->last_study_id;
    ASSERT_GE(last, acknowledged);
    ASSERT_LE(last, acknowledged + 1);  // the commit interrupted by the kill may be durable
    for (; checked < last; ++checked) {
      const int64_t study = checked + 1;
      ASSERT_TRUE((*store)->GetStudy(study).ok()) << study;
      ASSERT_EQ((*store)->ListAttempts(study)->size(), 1u);
      ASSERT_EQ((*store)->ListStreams(study)->at(0).position, 30);
      std::vector<Series> points;
      ASSERT_TRUE(
          (*store)->ReadPoints({study, "", {}}, [&](Series s) { points.push_back(std::move(s)); }).ok());
      ASSERT_EQ(points.size(), 1u);
      ASSERT_EQ(points[0].value, (std::vector<double>{1.0 * static_cast<double>(study), 2, 3}));
    }
    ASSERT_EQ((*store)->ListStudies(0, 1'000'000, {})->size(), static_cast<size_t>(last));
  }
  EXPECT_GT(checked, 40);
}

}  // namespace
}  // namespace scalelab::db
