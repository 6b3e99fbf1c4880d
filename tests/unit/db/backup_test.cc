// Tests backups of a database that is in use, of one that is not, and all errors.
#include "db/backup.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "db/migrations.h"
#include "db/sqlite/sqlite.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

using ::testing::HasSubstr;

class Backup : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Store> Open(const std::string& path) {
    auto store = OpenSqliteStore({path, GetParam()});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? std::move(*store) : nullptr;
  }
  // Commits a study with an attempt and some points, all with id `id`.
  static WriteBatch Numbered(int64_t id) {
    WriteBatch batch;
    batch.studies = {AStudy(id)};
    batch.cells = {ACell(id, id)};
    batch.runs = {ARun(id, id, id)};
    batch.attempts = {AnAttempt(id, id)};
    batch.appends = {AnAppend(id, 0, 0, 10)};
    batch.appends[0].columns = {AColumn("loss", 0, std::vector<double>(200, static_cast<double>(id)))};
    return batch;
  }
  static size_t Points(Store& store, int64_t attempt) {
    size_t points = 0;
    EXPECT_TRUE(store.ReadPoints({attempt, "", {}}, [&](Series s) { points += s.value.size(); }).ok());
    return points;
  }
  std::vector<std::string> Files() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(copies_.path()))
      names.push_back(entry.path().filename());
    return names;
  }
  absl::Status Make() { return BackupDatabase(path_, copy_); }

  TemporaryDirectory directory_, copies_;
  std::string path_ = directory_.path() + "/scalelab.db";
  std::string copy_ = copies_.path() + "/backup.db";
};

INSTANTIATE_TEST_SUITE_P(Journals, Backup, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "RollbackJournal" : "Wal"; });

TEST_P(Backup, HasEverythingThatWasCommittedBeforeItBeganAndNothingByHalves) {
  const auto store = Open(path_);
  std::atomic<int64_t> committed = 0;
  std::atomic<bool> enough = false;
  std::thread writer([&] {
    for (int64_t id = 1; !enough; ++id) {
      if (const absl::Status status = store->Commit(Numbered(id)); !status.ok()) {
        ADD_FAILURE() << status;
        break;
      }
      committed = id;
      committed.notify_all();
    }
    committed = INT64_MAX;
    committed.notify_all();
  });
  const auto wait_for = [&](int64_t id) {
    for (int64_t seen = committed; seen < id; seen = committed) committed.wait(seen);
  };
  for (int round = 0; round < 5; ++round) {
    wait_for(committed + 20);
    const int64_t before = committed;
    const std::string file = copy_ + std::to_string(round);
    const absl::Status status = BackupDatabase(path_, file);
    ASSERT_TRUE(status.ok()) << status;
    wait_for(committed + 1);  // the writer continues
    const auto copy = Open(file);
    const int64_t last = copy->Load()->last_study_id;
    EXPECT_GE(last, before);
    for (int64_t id = 1; id <= last; ++id) {
      ASSERT_TRUE(copy->GetStudy(id).ok()) << id;
      ASSERT_EQ(Points(*copy, id), 200U) << id;
    }
    EXPECT_TRUE(copy->Commit(Numbered(last + 1)).ok()) << "a backup is a database like any other";
  }
  enough = true;
  writer.join();
}

TEST_P(Backup, IsOneFileForItsOwnerOnlyAndIsMadeWithoutAServiceToo) {
  Open(path_)->Commit(Numbered(1)).IgnoreError();
  ASSERT_TRUE(Make().ok());
  EXPECT_THAT(Files(), ::testing::ElementsAre("backup.db"));
  struct stat found {};
  ASSERT_EQ(stat(copy_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600U);
  EXPECT_EQ(Points(*Open(copy_), 1), 200U);
  EXPECT_EQ(Points(*Open(path_), 1), 200U);
}

TEST_P(Backup, WithARollbackJournalCommitsWaitForLongerThanACopyTakes) {
  if (!GetParam()) GTEST_SKIP() << "with a WAL, commits do not wait for readers";
  const auto store = Open(path_);
  absl::StatusOr<int64_t> milliseconds = 0;
  ASSERT_TRUE(store
                  ->WriteRows([&](Database& writer) {
                    milliseconds = writer.QueryInt("PRAGMA busy_timeout");
                    return milliseconds.status();
                  })
                  .ok());
  EXPECT_GE(*milliseconds, 30 * 60 * 1000);
}

// Returns the commands of the page on backups that replace the files of the database.
std::string RestoreCommands() {
  std::stringstream page;
  page << std::ifstream(BACKUP_PAGE).rdbuf();
  std::string text = page.str();
  text = text.substr(text.find("## Restore"));
  text = text.substr(text.find("```\n") + 4);
  text = text.substr(0, text.find("```"));
  return std::regex_replace(text, std::regex("systemctl [^\n]*|-o scalelab -g \"[^\"]*\""), "");
}

TEST_P(Backup, TheCommandsOfThePageRestoreItAlsoAfterACrash) {
  {
    const auto store = Open(path_);
    ASSERT_TRUE(store->Commit(Numbered(1)).ok());
    ASSERT_TRUE(Make().ok());
    for (int64_t id = 2; id <= 50; ++id) ASSERT_TRUE(store->Commit(Numbered(id)).ok());
  }
  // What a crash leaves: the journal of an interrupted commit, or a WAL that is not checkpointed.
  const std::string left = copies_.path() + "/left";
  const std::string journal = path_ + (GetParam() ? "-journal" : "-wal");
  {
    const auto db = *Database::Open(path_, Database::Mode::kReadWrite, 1000);
    // With a small cache, SQLite writes changed pages to the disk before the commit.
    ASSERT_TRUE(db->Execute("PRAGMA cache_size=1; UPDATE study SET name = 'changed'; BEGIN IMMEDIATE; "
                            "UPDATE study SET name = hex(randomblob(2000))")
                    .ok());
    std::filesystem::copy_file(journal, left);
  }
  std::filesystem::rename(left, journal);
  std::string commands = RestoreCommands();
  commands = std::regex_replace(commands, std::regex("/var/lib/scalelab"), directory_.path());
  commands = std::regex_replace(commands, std::regex("/var/backups/scalelab/today.db"), copy_);
  ASSERT_EQ(std::system(("set -e\n" + commands).c_str()), 0) << commands;

  EXPECT_FALSE(std::filesystem::exists(journal));
  const auto store = Open(path_);
  EXPECT_EQ(store->Load()->last_study_id, 1);
  EXPECT_EQ(store->GetStudy(1)->name, AStudy(1).name);
  EXPECT_EQ(Points(*store, 1), 200U);
}

TEST_P(Backup, OverwritesNothing) {
  Open(path_);
  std::ofstream(copy_) << "mine";
  absl::Status status = Make();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(copy_ + " exists"));
  EXPECT_EQ(std::filesystem::file_size(copy_), 4U);
  std::filesystem::rename(copy_, copy_ + ".part");
  status = Make();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("another backup is writing it, or one was interrupted"));
  EXPECT_EQ(std::filesystem::file_size(copy_ + ".part"), 4U);
}

TEST_P(Backup, WhatIsNoDatabaseOfOursIsRefused) {
  EXPECT_TRUE(absl::IsNotFound(Make()));
  EXPECT_THAT(std::string(Make().message()), HasSubstr("There is no database " + path_));
  std::ofstream(path_) << std::string(5000, 'x');
  EXPECT_TRUE(absl::IsFailedPrecondition(Make()));
  EXPECT_THAT(std::string(Make().message()), HasSubstr(path_ + " is not an SQLite database"));
  std::filesystem::remove(path_);
  ASSERT_TRUE((*Database::Open(path_, Database::Mode::kReadWrite, 1000))->Execute("CREATE TABLE t (x)").ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Make()));
  EXPECT_THAT(std::string(Make().message()), HasSubstr("is not a scalelab database"));
  EXPECT_TRUE(Files().empty());
}

TEST_P(Backup, AFolderThatIsNotThereIsNamed) {
  Open(path_);
  const absl::Status status = BackupDatabase(path_, copies_.path() + "/none/backup.db");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("/none/backup.db.part cannot be written (No such file"));
}

TEST_P(Backup, WithoutASyncOfTheFolderNothingIsLeft) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read any folder; run as another user to test this";
  Open(path_);
  ASSERT_EQ(chmod(copies_.path().c_str(), 0300), 0);  // files can be created, but the folder cannot be opened
  const absl::Status status = Make();
  ASSERT_EQ(chmod(copies_.path().c_str(), 0700), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(copies_.path()));
  EXPECT_TRUE(Files().empty());
}

TEST_P(Backup, WithoutSpaceNothingIsLeft) {
  const auto store = Open(path_);
  for (int64_t id = 1; id <= 300; ++id) ASSERT_TRUE(store->Commit(Numbered(id)).ok());
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit tight = {1 << 17, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const absl::Status status = Make();
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(copy_ + ".part"));
  EXPECT_TRUE(Files().empty());
  EXPECT_TRUE(Make().ok());
}

TEST_P(Backup, ADamagedDatabaseIsToldAndNotKept) {
  {
    const auto store = Open(path_);
    for (int64_t id = 1; id <= 50; ++id) ASSERT_TRUE(store->Commit(Numbered(id)).ok());
  }
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 * 3);
    file << std::string(4096 * 20, '\x5a');
  }
  const absl::Status status = Make();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + " is damaged"));
  EXPECT_TRUE(Files().empty());
}

}  // namespace
}  // namespace scalelab::db
