// Cuts the power of a simulated disk at every operation of the code that creates the identity file of a database, a backup
// or the secrets of a data directory. After each cut, a file is complete or does not exist; once its creation was
// acknowledged, it is complete.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "db/backup.h"
#include "db/sqlite_store.h"
#include "files/durable_file.h"
#include "gtest/gtest.h"
#include "server/data_dir.h"
#include "tests/contract/store_fixture.h"
#include "tests/powercut/disk.h"
#include "tests/powercut/disk_files.h"
#include "tests/powercut/disk_vfs.h"
#include "tests/powercut/workload.h"

namespace scalelab::powercut {
namespace {

// Number of images after each operation.
constexpr int kCuts = 40;

// What was done, and the files that exist afterwards.
struct Recording {
  Image before, after;
  Log log;
};

std::string TextOf(const Image& image, const std::string& path) {
  const auto file = image.find(path);
  return file == image.end() ? "" : file->second;
}

// Checks images of power cuts at each operation of `recording`. The file `path` has to have the content that it had before
// or after, and the latter when all operations are over. Calls `check` with each image. Returns the first error, or "".
std::string CheckCuts(const Recording& recording, const std::string& path, const Flaws& flaws = {},
                      const std::function<std::string(const Image&)>& check = nullptr) {
  PowerCuts cuts(flaws, recording.before);
  std::mt19937_64 random(1);
  const auto find = [&](const Image& image) -> std::optional<std::string> {
    if (!image.contains(path)) return std::nullopt;
    return image.at(path);
  };
  for (const auto& operation : recording.log) {
    cuts.Apply(operation);
    const bool over = cuts.position() == recording.log.size();
    for (int i = 0; i < kCuts; ++i) {
      const Image image = cuts.Cut(random);
      const std::string where =
          absl::StrCat("cut after operation ", cuts.position(), " of ", recording.log.size(), ": ");
      const std::optional<std::string> found = find(image);
      if (found != find(recording.after) && (over || found != find(recording.before))) {
        return absl::StrCat(where, path,
                            found ? absl::StrCat(" has ", found->size(), " bytes") : " does not exist");
      }
      const std::string wrong = check == nullptr ? "" : check(image);
      if (!wrong.empty()) return absl::StrCat(where, wrong);
    }
  }
  return "";
}

// Records what `work` does on a disk with the files `before`.
Recording Record(const Image& before, const std::function<void(FileSystem&)>& work) {
  Disk disk(before);
  disk.set_recording(true);
  const DiskVfs vfs(disk);
  DiskFiles files(disk);
  work(files);
  return {before, disk.Contents(), disk.TakeLog()};
}

// Checks that cuts of a correct disk are survived, and that cuts of a disk with flaws are not.
void ExpectSurvived(const Recording& recording, const std::string& path) {
  ASSERT_FALSE(TextOf(recording.after, path).empty()) << path;
  EXPECT_EQ(CheckCuts(recording, path), "");
  EXPECT_NE(CheckCuts(recording, path, {.ignores_sync = true}), "")
      << "a disk that ignores syncs was not found";
  EXPECT_NE(CheckCuts(recording, path, {.ignores_directory_sync = true}), "")
      << "a disk that ignores syncs of its directory was not found";
}

TEST(PowerCutFiles, AFileIsReplacedAsAWhole) {
  const std::string path = "/folder/file", content(2000, 'x');
  const Image nothing = {}, old = {{path, "old"}},
              interrupted = {{path, "old"}, {path + ".part", "left over"}};
  for (const Image& before : {nothing, old, interrupted}) {
    const Recording recording =
        Record(before, [&](FileSystem& files) { EXPECT_EQ(WriteDurably(files, path, content).error, 0); });
    EXPECT_EQ(recording.after, (Image{{path, content}}));
    ExpectSurvived(recording, path);
  }
}

// Fails each operation. The file has to be complete, or must not exist, and no part of it may be left.
TEST(PowerCutFiles, AfterAnErrorNoFileIsLeft) {
  const std::string path = "/folder/file", content(2000, 'x');
  for (const bool no_space : {false, true}) {
    bool failed = true;
    for (int64_t number = 0; failed; ++number) {
      ASSERT_LT(number, 20);
      Disk disk;
      DiskFiles files(disk);
      disk.set_fault({number, number, no_space});
      failed = WriteDurably(files, path, content).error != 0;
      EXPECT_EQ(disk.Contents(), failed ? Image{} : (Image{{path, content}})) << "operation " << number;
      failed |= number < disk.operations();  // the fault may not have had an effect
    }
  }
}

class PowerCutDatabaseFiles : public ::testing::TestWithParam<bool> {
 protected:
  absl::StatusOr<std::unique_ptr<db::Store>> Open(FileSystem& files) {
    db::SqliteOptions options;
    options.path = path_;
    options.rollback_journal = GetParam();
    options.readers = 1;
    options.files = &files;
    return db::OpenSqliteStore(options);
  }
  // Returns the files of a database with some commits.
  Image MakeDatabase() {
    const Recording recording = Record({}, [&](FileSystem& files) {
      auto store = Open(files);
      ASSERT_TRUE(store.ok()) << store.status();
      Workload workload(1);
      Model model;
      for (int i = 0; i < 10; ++i) {
        const db::WriteBatch batch = workload.Next(model);
        ASSERT_TRUE((*store)->Commit(batch).ok());
        model.Apply(batch);
      }
    });
    return recording.after;
  }

  db::TemporaryDirectory directory_ = db::TemporaryDirectory::InMemory();
  const std::string path_ = directory_.path() + "/scalelab.db";
};

INSTANTIATE_TEST_SUITE_P(Journals, PowerCutDatabaseFiles, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "RollbackJournal" : "Wal"; });

TEST_P(PowerCutDatabaseFiles, AnIdentityIsComplete) {
  // powercut_test cuts the power while the database is created. Here it exists, and only its identity is recorded again.
  Image database = MakeDatabase();
  ASSERT_EQ(database.erase(path_ + ".id"), 1u);
  ExpectSurvived(Record(database,
                        [&](FileSystem& files) {
                          auto store = Open(files);
                          ASSERT_TRUE(store.ok()) << store.status();
                        }),
                 path_ + ".id");
}

TEST_P(PowerCutDatabaseFiles, ABackupIsComplete) {
  const Image database = MakeDatabase();
  const std::string copy = directory_.path() + "/backup.db";
  ExpectSurvived(Record(database,
                        [&](FileSystem& files) {
                          const absl::Status status = db::BackupDatabase(path_, copy, &files);
                          ASSERT_TRUE(status.ok()) << status;
                        }),
                 copy);
}

TEST(PowerCutFiles, SecretsAreComplete) {
  const db::TemporaryDirectory directory = db::TemporaryDirectory::InMemory();
  const Recording recording = Record({}, [&](FileSystem& files) {
    const auto opened = server::DataDir::Open(directory.path(), &files);
    ASSERT_TRUE(opened.ok()) << opened.status();
  });
  const std::string token = directory.path() + "/client.token", key = directory.path() + "/server.key";
  for (const std::string& path : {token, key}) ExpectSurvived(recording, path);
  // The next start finds each secret that was left, and creates the others.
  const auto start = [&](const Image& image) -> std::string {
    Disk disk(image);
    DiskFiles files(disk);
    const auto opened = server::DataDir::Open(directory.path(), &files);
    return opened.ok() ? "" : opened.status().ToString();
  };
  EXPECT_EQ(CheckCuts(recording, key, {}, start), "");
}

}  // namespace
}  // namespace scalelab::powercut
