// Tests that the store detects a database that was deleted, replaced or emptied, while it is in use and
// at a start.
#include <unistd.h>

#include <fstream>

#include "db/backup.h"
#include "db/sqlite/sqlite.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

using ::testing::HasSubstr;

class Identity : public ::testing::TestWithParam<bool> {
 protected:
  absl::StatusOr<std::unique_ptr<Store>> OpenAt(const std::string& path) {
    SqliteOptions options;
    options.path = path;
    options.rollback_journal = GetParam();
    return OpenSqliteStore(options);
  }
  std::unique_ptr<Store> Open() {
    auto store = OpenAt(path_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? std::move(*store) : nullptr;
  }
  static absl::Status Put(Store& store, int64_t id) {
    WriteBatch batch;
    batch.studies = {AStudy(id)};
    return store.Commit(batch);
  }
  void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::string& text) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  TemporaryDirectory directory_;
  std::string path_ = directory_.path() + "/scalelab.db";
};

INSTANTIATE_TEST_SUITE_P(Journals, Identity, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "RollbackJournal" : "Wal"; });

TEST_P(Identity, ADatabaseThatIsDeletedWhileInUseTakesNothingMore) {
  auto store = Open();
  ASSERT_TRUE(Put(*store, 1).ok());
  unlink(path_.c_str());
  for (int64_t id = 2; id < 4; ++id) {
    ExpectRefused(Put(*store, id), absl::StatusCode::kFailedPrecondition, "was deleted, moved or replaced");
  }
  EXPECT_FALSE(store->Maintain().ok());
  EXPECT_TRUE(absl::IsNotFound(store->GetStudy(2).status()));
}

TEST_P(Identity, ADatabaseThatIsMovedAwayAndBackTakesCommitsAgain) {
  auto store = Open();
  ASSERT_TRUE(Put(*store, 1).ok());
  std::filesystem::rename(path_, path_ + ".away");
  ExpectRefused(Put(*store, 2), absl::StatusCode::kFailedPrecondition, "put the file back");
  std::filesystem::rename(path_ + ".away", path_);
  EXPECT_TRUE(Put(*store, 2).ok());
}

TEST_P(Identity, ADatabaseThatIsReplacedWhileInUseTakesNothingMore) {
  auto store = Open();
  ASSERT_TRUE(Put(*store, 1).ok());
  ASSERT_TRUE(BackupDatabase(path_, path_ + ".copy").ok());
  std::filesystem::rename(path_ + ".copy", path_);
  ExpectRefused(Put(*store, 2), absl::StatusCode::kFailedPrecondition, "was deleted, moved or replaced");
}

TEST_P(Identity, ADatabaseThatIsEmptiedOrOverwrittenWhileInUseTakesNothingMore) {
  for (const std::string& contents : {std::string(), std::string(8192, 'x')}) {
    SCOPED_TRACE(contents.size());
    for (const char* suffix : {"", ".id", "-wal", "-shm", "-journal"})
      std::filesystem::remove(path_ + suffix);
    auto store = Open();
    ASSERT_TRUE(Put(*store, 1).ok());
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << contents;
    ExpectRefused(Put(*store, 2), absl::StatusCode::kDataLoss,
                  contents.empty() ? "was emptied" : "was overwritten");
  }
}

TEST_P(Identity, ALogThatIsDeletedWhileInUseIsNoticed) {
  if (GetParam()) GTEST_SKIP() << "there is no log between commits";
  auto store = Open();
  ASSERT_TRUE(Put(*store, 1).ok());
  unlink((path_ + "-wal").c_str());
  ExpectRefused(Put(*store, 2), absl::StatusCode::kFailedPrecondition, path_ + "-wal was deleted");
}

TEST_P(Identity, AStartWithoutTheDatabaseThatExistedIsRefused) {
  Open();
  unlink(path_.c_str());
  ExpectRefused(OpenAt(path_).status(), absl::StatusCode::kFailedPrecondition, "is missing or empty");
  EXPECT_FALSE(std::filesystem::exists(path_));
  std::ofstream(path_) << "";
  ExpectRefused(OpenAt(path_).status(), absl::StatusCode::kFailedPrecondition, "is missing or empty");
  EXPECT_EQ(std::filesystem::file_size(path_), 0u);
  unlink((path_ + ".id").c_str());
  Open();
}

TEST_P(Identity, AnotherDatabaseInItsPlaceIsRefusedAtAStart) {
  Open();
  const std::string other = directory_.path() + "/other.db";
  ASSERT_TRUE(OpenAt(other).ok());
  std::filesystem::rename(other, path_);
  ExpectRefused(OpenAt(path_).status(), absl::StatusCode::kFailedPrecondition,
                "is not the database that belongs here");
  unlink((path_ + ".id").c_str());
  Open();
}

TEST_P(Identity, ARestoredBackupIsAcceptedAtAStart) {
  {
    auto store = Open();
    ASSERT_TRUE(Put(*store, 1).ok());
    ASSERT_TRUE(BackupDatabase(path_, path_ + ".copy").ok());
    ASSERT_TRUE(Put(*store, 2).ok());
  }
  std::filesystem::rename(path_ + ".copy", path_);
  auto store = Open();
  EXPECT_TRUE(store->GetStudy(1).ok());
  EXPECT_TRUE(absl::IsNotFound(store->GetStudy(2).status()));
}

}  // namespace
}  // namespace scalelab::db
