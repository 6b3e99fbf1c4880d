// Tests what OpenSqliteStore accepts and rejects, and its messages.
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "db/sqlite/filesystem.h"
#include "db/sqlite/sqlite.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

using ::testing::HasSubstr;
using ::testing::StrEq;

absl::StatusOr<std::unique_ptr<Store>> OpenAt(const std::string& path, bool rollback_journal = false) {
  SqliteOptions options;
  options.path = path;
  options.rollback_journal = rollback_journal;
  return OpenSqliteStore(options);
}

TEST(Open, KnowsNetworkFilesystemsByTheirNumbers) {
  EXPECT_THAT(NetworkFilesystem(0x6969), StrEq("NFS"));
  EXPECT_THAT(NetworkFilesystem(0x0bd00bd0), StrEq("Lustre"));
  EXPECT_THAT(NetworkFilesystem(static_cast<int>(0xff534d42)),
              StrEq("SMB"));  // as reported by a 32-bit statfs
  EXPECT_THAT(NetworkFilesystem(0x65735546), StrEq("FUSE"));
  EXPECT_EQ(NetworkFilesystem(0xef53), nullptr);      // ext4
  EXPECT_EQ(NetworkFilesystem(0x01021994), nullptr);  // tmpfs
}

TEST(Open, AFolderThatIsNotThereIsNamed) {
  const absl::Status status = OpenAt("/nowhere/at/all/scalelab.db").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/at/all"));
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenAt("/nowhere/at/all/scalelab.db", true).status()));
}

TEST(Open, AFileThatIsNoDatabaseIsRefusedAndKept) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/notes.txt";
  const std::string text(2000, 'x');
  std::ofstream(path) << text;
  const absl::Status status = OpenAt(path).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not an SQLite database"));
  EXPECT_EQ(std::filesystem::file_size(path), text.size());
}

TEST(Open, AFolderWithoutWritePermissionIsRefused) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write anywhere; run as another user to test this";
  TemporaryDirectory directory;
  chmod(directory.path().c_str(), 0500);
  const absl::Status status = OpenAt(directory.path() + "/scalelab.db").status();
  chmod(directory.path().c_str(), 0700);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

TEST(Open, ASecondStoreOfOneFileIsRefusedWhileTheFirstLives) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/scalelab.db";
  auto first = OpenAt(path);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status status = OpenAt(path).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another scalelabd"));
  first->reset();
  EXPECT_TRUE(OpenAt(path).ok());
}

TEST(Open, AClosedDatabaseIsOneFileWithoutAWal) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/scalelab.db";
  {
    auto store = OpenAt(path);
    ASSERT_TRUE(store.ok()) << store.status();
    WriteBatch batch;
    batch.studies = {AStudy(1)};
    ASSERT_TRUE((*store)->Commit(batch).ok());
    EXPECT_TRUE(std::filesystem::exists(path + "-wal"));
  }
  EXPECT_FALSE(std::filesystem::exists(path + "-wal"));
  EXPECT_FALSE(std::filesystem::exists(path + "-shm"));
  auto raw = Database::Open(path, Database::Mode::kReadWrite, 0);
  ASSERT_TRUE(raw.ok());
  EXPECT_EQ(*(*raw)->QueryText("PRAGMA journal_mode"), "wal");
}

TEST(Open, TheJournalModeCanBeChangedBetweenStarts) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/scalelab.db";
  for (bool rollback_journal : {false, true, false}) {
    auto store = OpenAt(path, rollback_journal);
    ASSERT_TRUE(store.ok()) << store.status();
    WriteBatch batch;
    batch.studies = {AStudy(1)};
    EXPECT_TRUE((*store)->Commit(batch).ok());
    EXPECT_EQ(std::filesystem::exists(path + "-wal"), !rollback_journal);
  }
}

TEST(Open, ADamagedFileIsToldAsDataLoss) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/scalelab.db";
  {
    auto store = OpenAt(path);
    WriteBatch batch;
    for (int64_t id = 1; id <= 10000; ++id) batch.studies.push_back(AStudy(id));
    ASSERT_TRUE((*store)->Commit(batch).ok());
  }
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path));
    const std::string junk(4096, '\x5a');
    for (std::streamoff at = 4096 * 100; at + 4096 <= size; at += 4096) {
      file.seekp(at);
      file.write(junk.data(), 4096);
    }
  }
  auto store = OpenAt(path);
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::Status status = (*store)->ListStudies(0, 50000, {}).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("restore a backup"));
}

}  // namespace
}  // namespace scalelab::db
