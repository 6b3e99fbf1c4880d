// Cuts the power of a simulated disk at every operation of a workload of the real store, opens the remaining
// files with the real store, and compares the contents with a plain model. Also fails each operation with EIO
// or ENOSPC. The ideas are those of https://www.sqlite.org/testing.html, section 3, and of "All File Systems
// Are Not Created Equal" (Pillai et al. 2014).
//
// A workload is recorded once. The image of each cut is made from its log. Images with the same contents have
// the same result; so do images from which the store recovers the same file. Each different image is opened
// once, and each different recovered file is read once.
//
// SCALELAB_POWERCUTS=N checks N cuts of each journal mode instead of 5,000, or of a million with SCALELAB_LONG_TESTS=1.
// It also checks errors of N operations instead of 250, or of every operation with SCALELAB_LONG_TESTS=1.
// SCALELAB_POWERCUT_SEED=S starts with another workload. A failure prints the seed and the number of the operation.
#include <cstdlib>
#include <ctime>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "db/sqlite/sqlite.h"
#include "db/sqlite_store.h"
#include "gtest/gtest.h"
#include "tests/contract/store_fixture.h"
#include "tests/powercut/disk.h"
#include "tests/powercut/disk_files.h"
#include "tests/powercut/disk_vfs.h"
#include "tests/powercut/workload.h"

namespace scalelab::powercut {
namespace {

using db::Store;
using db::WriteBatch;

constexpr int kCommits = 40;

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

// The results of a recorded workload.
struct Recording {
  Log log;
  std::vector<std::string> contents;  // [i]: after i acknowledged commits
  std::vector<size_t> acknowledged;   // [i]: length of the log when commit i + 1 was acknowledged
};

class PowerCut : public ::testing::TestWithParam<bool> {
 protected:
  absl::StatusOr<std::unique_ptr<Store>> Open(FileSystem& files) {
    db::SqliteOptions options;
    options.path = path_;
    options.rollback_journal = GetParam();
    options.readers = 1;
    options.checkpoint_pages = 24;  // so that a short workload has checkpoints
    options.files = &files;
    return db::OpenSqliteStore(options);
  }
  // Runs the workload on a disk without faults.
  Recording Record(uint64_t seed) {
    Recording recording;
    Disk disk;
    disk.set_recording(true);
    DiskVfs vfs(disk);
    DiskFiles files(disk);
    auto store = Open(files);
    EXPECT_TRUE(store.ok()) << store.status();
    Workload workload(seed);
    std::mt19937_64 random(seed);
    Model model;
    recording.contents.push_back(model.Dump());
    for (int i = 0; i < kCommits; ++i) {
      const WriteBatch batch = workload.Next(model);
      const absl::Status status = (*store)->Commit(batch);
      EXPECT_TRUE(status.ok()) << status;
      model.Apply(batch);
      recording.acknowledged.push_back(disk.log().size());
      recording.contents.push_back(model.Dump());
      for (int pieces = static_cast<int>(random() % 4); pieces > 0; --pieces)
        EXPECT_TRUE((*store)->Maintain().ok());
      if (random() % 16 == 0) {  // restart the store, which runs a checkpoint
        store->reset();
        store = Open(files);
        EXPECT_TRUE(store.ok()) << store.status();
      }
    }
    EXPECT_EQ(DumpStore(**store).value(), recording.contents.back()) << "seed " << seed;
    store->reset();
    recording.log = disk.TakeLog();
    return recording;
  }

  // The state that is found when the power is back.
  struct Finding {
    std::string dump;   // all contents that the store reads
    std::string wrong;  // with the file, or ""
  };
  struct Findings {
    std::unordered_map<size_t, std::shared_ptr<const Finding>> of_images, of_recovered;  // by HashOf
  };
  struct Counts {
    int64_t cuts = 0, images = 0, read = 0;  // images: different ones; read: read by the store
  };

  // Lets SQLite recover an image of a power cut, like the first read of the store, and close the file.
  absl::StatusOr<Image> Recover(Image image) {
    Disk disk(std::move(image));
    const DiskVfs vfs(disk);
    auto raw = db::Database::Open(path_, db::Database::Mode::kReadWrite, 0);
    if (!raw.ok()) return raw.status();
    if (const auto version = (*raw)->QueryInt("PRAGMA user_version"); !version.ok()) return version.status();
    raw->reset();
    Image recovered = disk.Contents();
    // SQLite ignores a journal with such a header, whatever the rest contains.
    if (const auto journal = recovered.find(path_ + "-journal");
        journal != recovered.end() && (journal->second.empty() || journal->second[0] == 0)) {
      recovered.erase(journal);
    }
    return recovered;
  }
  // Opens an image with the store and reads everything. If `further_work` is set, the store must also accept
  // maintenance and a commit.
  Finding Inspect(Image image, bool further_work, uint64_t seed) {
    Disk disk(std::move(image));
    const DiskVfs vfs(disk);
    DiskFiles files(disk);
    auto store = Open(files);
    if (!store.ok()) return {"", absl::StrCat("cannot be opened: ", store.status().ToString())};
    Finding finding = Read(**store);
    if (finding.wrong.empty() && further_work) finding.wrong = WorkOn(**store, seed);
    store->reset();
    if (finding.wrong.empty()) finding.wrong = CheckIntegrity();
    return finding;
  }
  // Checks an image for the first time, and returns the result. The store opens each fifteenth image as the power cut left
  // it. It opens another image only if SQLite recovers a file that has not been checked before.
  std::shared_ptr<const Finding> Examine(Image image, uint64_t seed, Findings& known, Counts& counts) {
    if (++counts.images % 15 == 0) {
      ++counts.read;
      return std::make_shared<Finding>(Inspect(std::move(image), counts.images % 2 == 0, seed));
    }
    absl::StatusOr<Image> recovered = Recover(std::move(image));
    if (!recovered.ok()) {
      return std::make_shared<Finding>(
          Finding{"", absl::StrCat("cannot be recovered: ", recovered.status().ToString())});
    }
    std::shared_ptr<const Finding>& finding = known.of_recovered[HashOf(*recovered)];
    if (finding == nullptr) {
      ++counts.read;
      finding = std::make_shared<Finding>(Inspect(*std::move(recovered), counts.read % 2 == 0, seed));
    }
    return finding;
  }
  static Finding Read(Store& store) {
    const auto dump = DumpStore(store);
    if (!dump.ok()) return {"", absl::StrCat("cannot be read: ", dump.status().ToString())};
    return {*dump, ""};
  }
  // Lets the store do maintenance and a further commit. Returns the error, or "".
  static std::string WorkOn(Store& store, uint64_t seed) {
    const absl::StatusOr<bool> maintained = store.Maintain();
    if (!maintained.ok()) return absl::StrCat("cannot be maintained: ", maintained.status().ToString());
    Model model;
    WriteBatch batch = Workload(seed).Next(model);
    batch.studies[0].id = batch.allocations[0].study_id = 1'000'000;
    batch.studies[0].request_id = batch.allocations[0].token = "next";
    batch.cell_values.clear();
    batch.cells.clear();
    batch.runs.clear();
    batch.attempts.clear();
    batch.allocations[0].id = 1'000'000;
    const absl::Status status = store.Commit(batch);
    return status.ok() ? "" : status.ToString();
  }
  // Returns the error that was found in the file, or "".
  std::string CheckIntegrity() {
    auto raw = db::Database::Open(path_, db::Database::Mode::kReadWrite, 0);
    if (!raw.ok()) return raw.status().ToString();
    const auto integrity = (*raw)->QueryText("PRAGMA integrity_check");
    if (!integrity.ok() || *integrity != "ok")
      return absl::StrCat("is damaged: ", integrity.value_or("unreadable"));
    const auto foreign = (*raw)->QueryInt("SELECT count(*) FROM pragma_foreign_key_check");
    if (!foreign.ok() || *foreign != 0) return "has rows that refer to nothing";
    const auto axes = (*raw)->QueryInt(
        "SELECT count(*) FROM point_axis x WHERE uses <> (SELECT count(*) FROM point_chunk c WHERE c.axis = "
        "x.id)");
    if (!axes.ok() || *axes != 0) return "has axes with wrong counts of their chunks";
    return "";
  }

  // Returns the error that was found in an image of a power cut after `position` operations, or "".
  std::string CheckImage(const Recording& recording, size_t position, Image image, uint64_t seed,
                         Findings& known, Counts& counts) {
    std::shared_ptr<const Finding>& finding = known.of_images[HashOf(image)];
    if (finding == nullptr) finding = Examine(std::move(image), seed, known, counts);
    if (!finding->wrong.empty()) return finding->wrong;
    size_t commits = 0;
    while (commits < recording.acknowledged.size() && recording.acknowledged[commits] <= position) ++commits;
    const bool before = finding->dump == recording.contents[commits];
    const bool after =
        commits + 1 < recording.contents.size() && finding->dump == recording.contents[commits + 1];
    return before || after ? ""
                           : absl::StrCat("is neither the state after ", commits, " commits nor the next");
  }

  // Checks `wanted` cuts. Returns the first error, or "".
  std::string CheckCuts(int64_t wanted, const Flaws& flaws) {
    const std::clock_t begin = std::clock();
    Counts counts;
    for (uint64_t seed = static_cast<uint64_t>(FromEnvironment("SCALELAB_POWERCUT_SEED", 1));
         counts.cuts < wanted; ++seed) {
      const Recording recording = Record(seed);
      // Spreads the cuts over the whole workload.
      const size_t stride = std::max<size_t>(1, recording.log.size() / static_cast<size_t>(wanted));
      PowerCuts cuts(flaws);
      Findings known;
      std::mt19937_64 random(seed);
      for (const auto& operation : recording.log) {
        cuts.Apply(operation);
        if (cuts.position() % stride != 0) continue;
        if (counts.cuts == wanted) break;
        const std::string wrong =
            CheckImage(recording, cuts.position(), cuts.Cut(random), seed, known, counts);
        ++counts.cuts;
        if (!wrong.empty()) {
          return absl::StrCat("seed ", seed, ", cut after operation ", cuts.position(), " of ",
                              recording.log.size(), ", after ", counts.cuts, " cuts: the database ", wrong);
        }
      }
    }
    std::printf(
        "%lld cuts, %.0f per second of a core; %lld different images, %lld of them read by the store\n",
        static_cast<long long>(counts.cuts),
        static_cast<double>(counts.cuts) * CLOCKS_PER_SEC / static_cast<double>(std::clock() - begin),
        static_cast<long long>(counts.images), static_cast<long long>(counts.read));
    return "";
  }

  db::TemporaryDirectory directory_ = db::TemporaryDirectory::InMemory();
  const std::string path_ = directory_.path() + "/scalelab.db";
};

INSTANTIATE_TEST_SUITE_P(Journals, PowerCut, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "RollbackJournal" : "Wal"; });

TEST_P(PowerCut, EveryAcknowledgedCommitIsThereOnceAndNoOtherIsThereInPart) {
  const int64_t usual = std::getenv("SCALELAB_LONG_TESTS") != nullptr ? 1'000'000 : 5000;
  EXPECT_EQ(CheckCuts(FromEnvironment("SCALELAB_POWERCUTS", usual), {}), "");
}

TEST_P(PowerCut, ADiskThatIgnoresSyncsIsFound) { EXPECT_NE(CheckCuts(2000, {.ignores_sync = true}), ""); }

TEST_P(PowerCut, ADiskThatIgnoresSyncsOfItsDirectoryIsFound) {
  EXPECT_NE(CheckCuts(2000, {.ignores_directory_sync = true}), "");
}

// Lets operations of a workload fail. A commit that returns an error must leave the store unchanged. The same
// batch must succeed afterwards.
TEST_P(PowerCut, AnErrorOfAnyOperationChangesNothingAndPasses) {
  // 0: every operation of one workload
  const int64_t usual = std::getenv("SCALELAB_LONG_TESTS") != nullptr ? 0 : 250;
  const int64_t wanted = FromEnvironment("SCALELAB_POWERCUTS", usual);
  const absl::Time begin = absl::Now();
  int64_t checked = 0, failed = 0, unknown = 0;
  for (uint64_t seed = 1; checked == 0 || checked < wanted; ++seed) {
    int64_t operations = 0;  // number of operations of the workload without faults
    for (int64_t number = -1; (wanted == 0 || checked < wanted) && (number < 0 || number < operations);
         ++checked) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, " operation ", number));
      Disk disk;
      DiskVfs vfs(disk);
      DiskFiles files(disk);
      std::mt19937_64 random(seed + static_cast<uint64_t>(number + 1));
      const int64_t length = random() % 2 == 0 ? 0 : static_cast<int64_t>(random() % 40);
      if (number >= 0) disk.set_fault({number, number + length, random() % 2 == 0});
      auto store = Open(files);
      if (!store.ok()) {
        ++failed;
        disk.set_fault({});
        store = Open(files);
      }
      ASSERT_TRUE(store.ok()) << store.status();
      Workload workload(seed);
      Model model;
      for (int i = 0; i < 12; ++i) {
        const WriteBatch batch = workload.Next(model);
        absl::Status status = (*store)->Commit(batch);
        if (!status.ok()) {
          ++failed;
          EXPECT_TRUE(absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status)) << status;
          disk.set_fault({});
          const std::string dump = DumpStore(**store).value();
          Model after = model;
          after.Apply(batch);
          // With a rollback journal, the last step of a commit is to sync the directory. If this step fails,
          // the commit is already complete.
          const bool committed = GetParam() && dump == after.Dump();
          if (committed) ++unknown;
          if (!committed) {
            ASSERT_EQ(dump, model.Dump()) << "after " << status;
          }
          status = committed ? absl::OkStatus() : (*store)->Commit(batch);
        }
        ASSERT_TRUE(status.ok()) << status;
        model.Apply(batch);
        if (i % 4 == 3 && !(*store)->Maintain().ok()) ++failed;
      }
      disk.set_fault({});
      ASSERT_EQ(DumpStore(**store).value(), model.Dump());
      store->reset();
      auto raw = db::Database::Open(path_, db::Database::Mode::kReadWrite, 0);
      ASSERT_EQ((*raw)->QueryText("PRAGMA integrity_check").value(), "ok");
      if (number < 0) operations = disk.operations();
      const int64_t stride = wanted == 0 ? 1 : std::max<int64_t>(1, operations / wanted);
      number = number < 0 ? 0 : number + stride;
    }
  }
  EXPECT_GT(failed, checked / 10);
  EXPECT_LT(unknown, failed / 4);
  std::printf("%lld faults, %lld errors, %.0f per second\n", static_cast<long long>(checked),
              static_cast<long long>(failed),
              static_cast<double>(checked) / absl::ToDoubleSeconds(absl::Now() - begin));
}

}  // namespace
}  // namespace scalelab::powercut
