// Tests a full disk: the commit fails without any effect, and succeeds once there is space again.
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

constexpr size_t kPoints = 1 << 18;

std::unique_ptr<Store> OpenIn(const std::string& directory, bool rollback_journal) {
  SqliteOptions options;
  options.path = directory + "/scalelab.db";
  options.rollback_journal = rollback_journal;
  auto store = OpenSqliteStore(options);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? std::move(*store) : nullptr;
}

// A batch with a study and 2 MiB of points, which cannot be compressed.
WriteBatch Large(int64_t id) {
  WriteBatch batch;
  batch.studies = {AStudy(id)};
  batch.cells = {ACell(id, id)};
  batch.runs = {ARun(id, id, id)};
  batch.attempts = {AnAttempt(id, id)};
  batch.appends = {AnAppend(id, 0, 0, 10)};
  std::vector<double> values(kPoints);
  for (size_t i = 0; i < kPoints; ++i) values[i] = std::sin(static_cast<double>(i));
  batch.appends[0].columns = {AColumn("loss", 0, values)};
  return batch;
}

void ExpectRefusedThenAccepted(Store& store, const std::function<void()>& give_space) {
  WriteBatch small;
  small.studies = {AStudy(1, "before")};
  ASSERT_TRUE(store.Commit(small).ok());
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::Status status = store.Commit(Large(2));
    ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_TRUE(absl::IsNotFound(store.GetStudy(2).status()));
    EXPECT_TRUE(store.ListStreams(2)->empty());
    EXPECT_EQ(store.GetStudy(1)->name, "before");
  }
  give_space();
  const absl::Status status = store.Commit(Large(2));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(store.GetStudy(2)->id, 2);
  size_t points = 0;
  ASSERT_TRUE(store.ReadPoints({2, "", {}}, [&](Series s) { points += s.value.size(); }).ok());
  EXPECT_EQ(points, kPoints);
}

class DiskFull : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Journals, DiskFull, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "RollbackJournal" : "Wal"; });

TEST_P(DiskFull, WritesBeyondTheFileSizeLimitAreRefusedUntilItIsRaised) {
  TemporaryDirectory directory;
  std::unique_ptr<Store> store = OpenIn(directory.path(), GetParam());
  ASSERT_NE(store, nullptr);
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit tight = {1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  ExpectRefusedThenAccepted(*store, [&] { setrlimit(RLIMIT_FSIZE, &before); });
  setrlimit(RLIMIT_FSIZE, &before);
}

TEST_P(DiskFull, WritesToAFullFilesystemAreRefusedUntilThereIsSpace) {
  TemporaryDirectory directory;
  if (mount("tmpfs", directory.path().c_str(), "tmpfs", 0, "size=16m") != 0) {
    GTEST_SKIP() << "cannot mount a small tmpfs (" << std::strerror(errno)
                 << "); run as root to test a full disk";
  }
  {
    std::unique_ptr<Store> store = OpenIn(directory.path(), GetParam());
    ASSERT_NE(store, nullptr);
    const std::string ballast = directory.path() + "/ballast";
    {
      std::ofstream file(ballast, std::ios::binary);
      const std::string block(4096, 'x');
      while (file.write(block.data(), 4096).flush()) {
      }
    }
    // Leave half a MiB free, less than the points need.
    std::filesystem::resize_file(ballast, std::filesystem::file_size(ballast) - (1 << 19));
    ExpectRefusedThenAccepted(*store, [&] { std::filesystem::remove(ballast); });
  }
  umount(directory.path().c_str());
}

}  // namespace
}  // namespace scalelab::db
