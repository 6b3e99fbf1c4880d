// Cuts the power of a simulated disk at every operation of a workload of the real store, opens what is left with the
// real store, and compares it with a plain model. Also fails each operation with EIO or ENOSPC. The ideas are those of
// https://www.sqlite.org/testing.html, section 3, and of "All File Systems Are Not Created Equal" (Pillai et al. 2014).
//
// SCALELAB_POWERCUTS=N checks N cuts of each journal mode instead of about a thousand, and SCALELAB_POWERCUT_SEED=S
// starts with another workload. A failure prints the seed and the number of the operation.
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "db/sqlite.h"
#include "db/sqlite_store.h"
#include "gtest/gtest.h"
#include "tests/contract/store_fixture.h"
#include "tests/powercut/disk.h"
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

// What a recorded workload did.
struct Recording {
  std::vector<Operation> log;
  std::string identity;               // of the identity file
  size_t opened = 0;                  // length of the log when the store was open
  std::vector<std::string> contents;  // [i]: after i acknowledged commits
  std::vector<size_t> acknowledged;   // [i]: length of the log when commit i + 1 was acknowledged
};

class PowerCut : public ::testing::TestWithParam<bool> {
 protected:
  PowerCut() {
    // The store checks that a non-empty file has this name; the simulated disk has the contents.
    std::ofstream(path_) << "placeholder";
  }
  absl::StatusOr<std::unique_ptr<Store>> Open() {
    db::SqliteOptions options;
    options.path = path_;
    options.rollback_journal = GetParam();
    options.readers = 1;
    options.checkpoint_pages = 24;  // so that a short workload has checkpoints
    return db::OpenSqliteStore(options);
  }
  void SetIdentity(const std::string& identity) {
    std::filesystem::remove(path_ + ".id");
    if (!identity.empty()) std::ofstream(path_ + ".id") << identity;
  }
  std::string GetIdentity() {
    std::ifstream file(path_ + ".id");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Runs the workload on a disk without faults.
  Recording Record(uint64_t seed) {
    Recording recording;
    SetIdentity("");
    Disk disk;
    disk.set_recording(true);
    DiskVfs vfs(disk);
    auto store = Open();
    EXPECT_TRUE(store.ok()) << store.status();
    recording.identity = GetIdentity();
    recording.opened = disk.log().size();
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
      EXPECT_EQ(DumpStore(**store).value(), recording.contents.back()) << "seed " << seed << " commit " << i;
      for (int pieces = static_cast<int>(random() % 4); pieces > 0; --pieces)
        EXPECT_TRUE((*store)->Maintain().ok());
      if (random() % 16 == 0) {  // a restart, with its checkpoint
        store->reset();
        store = Open();
        EXPECT_TRUE(store.ok()) << store.status();
      }
    }
    store->reset();
    recording.log = disk.log();
    return recording;
  }

  // Opens what a power cut left, and returns what is wrong with it, or "".
  std::string CheckImage(const Recording& recording, size_t position, const Image& image, uint64_t seed) {
    SetIdentity(position >= recording.opened ? recording.identity : "");
    Disk disk(image);
    DiskVfs vfs(disk);
    auto store = Open();
    if (!store.ok()) return absl::StrCat("cannot be opened: ", store.status().ToString());
    const auto dump = DumpStore(**store);
    if (!dump.ok()) return absl::StrCat("cannot be read: ", dump.status().ToString());
    size_t commits = 0;
    while (commits < recording.acknowledged.size() && recording.acknowledged[commits] <= position) ++commits;
    const bool before = *dump == recording.contents[commits];
    const bool after = commits + 1 < recording.contents.size() && *dump == recording.contents[commits + 1];
    if (!before && !after)
      return absl::StrCat("is neither the state after ", commits, " commits nor the next");
    if (position % 8 == 0) {
      // The store accepts maintenance and further commits.
      const absl::StatusOr<bool> maintained = (*store)->Maintain();
      if (!maintained.ok()) return absl::StrCat("cannot be maintained: ", maintained.status().ToString());
      Model model;
      WriteBatch batch = Workload(seed).Next(model);
      batch.studies[0].id = batch.allocations[0].study_id = 1'000'000;
      batch.studies[0].request_id = batch.allocations[0].token = "next";
      batch.cells.clear();
      batch.runs.clear();
      batch.attempts.clear();
      batch.allocations[0].id = 1'000'000;
      if (const absl::Status status = (*store)->Commit(batch); !status.ok()) return status.ToString();
    }
    store->reset();
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

  // Checks cuts until there were `wanted`. Returns what is wrong with the first bad one, or "".
  std::string CheckCuts(int64_t wanted, const Flaws& flaws, int64_t* checked) {
    const absl::Time begin = absl::Now();
    for (uint64_t seed = static_cast<uint64_t>(FromEnvironment("SCALELAB_POWERCUT_SEED", 1));
         *checked < wanted; ++seed) {
      const Recording recording = Record(seed);
      // Without a wish for more, the cuts are spread over the whole workload.
      const size_t stride = std::max<size_t>(1, recording.log.size() / static_cast<size_t>(wanted));
      PowerCuts cuts(recording.log, flaws);
      std::mt19937_64 random(seed);
      while (cuts.Advance() && *checked < wanted) {
        if (cuts.position() % stride != 0) continue;
        ++*checked;
        const std::string wrong = CheckImage(recording, cuts.position(), cuts.Cut(random), seed);
        if (!wrong.empty()) {
          return absl::StrCat("seed ", seed, ", cut after operation ", cuts.position(), " of ",
                              recording.log.size(), ": the database ", wrong);
        }
      }
    }
    std::printf("%lld cuts, %.0f per second\n", static_cast<long long>(*checked),
                static_cast<double>(*checked) / absl::ToDoubleSeconds(absl::Now() - begin));
    return "";
  }

  db::TemporaryDirectory directory_ = db::TemporaryDirectory::InMemory();
  const std::string path_ = directory_.path() + "/scalelab.db";
};

INSTANTIATE_TEST_SUITE_P(Journals, PowerCut, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "RollbackJournal" : "Wal"; });

TEST_P(PowerCut, EveryAcknowledgedCommitIsThereOnceAndNoOtherIsThereInPart) {
  int64_t checked = 0;
  EXPECT_EQ(CheckCuts(FromEnvironment("SCALELAB_POWERCUTS", 800), {}, &checked), "");
}

TEST_P(PowerCut, ADiskThatIgnoresSyncsIsFound) {
  int64_t checked = 0;
  EXPECT_NE(CheckCuts(800, {.ignores_sync = true}, &checked), "");
}

TEST_P(PowerCut, ADiskThatIgnoresSyncsOfItsDirectoryIsFound) {
  int64_t checked = 0;
  EXPECT_NE(CheckCuts(800, {.ignores_directory_sync = true}, &checked), "");
}

// Fails operations of a workload. An error has to leave the store as it was, and the same batch succeeds afterwards.
TEST_P(PowerCut, AnErrorOfAnyOperationChangesNothingAndPasses) {
  const int64_t wanted = FromEnvironment("SCALELAB_POWERCUTS", 250);
  const absl::Time begin = absl::Now();
  int64_t checked = 0, failed = 0, unknown = 0;
  for (uint64_t seed = 1; checked < wanted; ++seed) {
    int64_t operations = 0;  // of the workload without faults
    for (int64_t number = -1; checked < wanted && number < operations; ++checked) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, " operation ", number));
      SetIdentity("");
      Disk disk;
      DiskVfs vfs(disk);
      std::mt19937_64 random(seed + static_cast<uint64_t>(number + 1));
      const int64_t length = random() % 2 == 0 ? 0 : static_cast<int64_t>(random() % 40);
      if (number >= 0) disk.set_fault({number, number + length, random() % 2 == 0});
      auto store = Open();
      if (!store.ok()) {
        ++failed;
        disk.set_fault({});
        store = Open();
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
          // With a rollback journal, the last step of a commit is to sync the directory. When that fails, the commit has
          // happened already.
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
      const int64_t stride = std::max<int64_t>(1, operations / wanted);
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
