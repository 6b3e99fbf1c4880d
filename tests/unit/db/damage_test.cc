// Tests that no damage of the file crashes a reader: each read succeeds, finds nothing, or returns DATA_LOSS.
#include <fstream>
#include <random>
#include <sstream>

#include "db/chunks.h"
#include "db/point_codec.h"
#include "db/sqlite/sqlite.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

using ::testing::HasSubstr;

class Damage : public ::testing::Test {
 protected:
  // Makes a small database with rows in all tables, chunks of both encodings and blobs with overflow pages.
  void SetUp() override {
    {
      auto store = Open();
      ASSERT_TRUE(store.ok()) << store.status();
      for (int64_t id = 1; id <= 3; ++id) {
        WriteBatch batch;
        batch.studies = {AStudy(id)};
        batch.studies[0].spec = std::string(6000, 's');
        batch.cell_values = {AValue(id, 0, "", "{}"), AValue(id, 1, "ranks", "1"),
                             AValue(id, 2, "command", std::string(6000, 'c'))};
        batch.cells = {ACell(id, id)};
        batch.runs = {ARun(id, id, id)};
        batch.allocations = {AnAllocation(id, id)};
        batch.attempts = {AnAttempt(id, id)};
        batch.provenance = {{id, "{}"}};
        batch.epochs = {{id, 0, 0, 1.5, {{"eval/accuracy", 0.4}}}};
        batch.summaries = {ASummary(id, id, 100)};
        std::vector<double> values;
        for (int i = 0; i < 3000; ++i) values.push_back(1 / (3.0 + i));
        batch.appends = {AnAppend(id, 0, 0, 30'000)};
        batch.appends[0].columns = {AColumn("loss", 0, values), AColumn("accuracy", 0, values),
                                    AColumn("few", 7, {1})};
        batch.appends[0].columns[2].time[0] = 0.1;
        ASSERT_TRUE((*store)->Commit(batch).ok());
      }
    }
    auto raw = Database::Open(path_, Database::Mode::kReadWrite, 1000);
    const std::vector<int64_t> lines = {0, 1, 5, 6};
    const std::vector<double> numbers(4, 0.5);
    ASSERT_TRUE(
        Statement(
            **raw,
            "INSERT INTO point_chunk (id, count, line, step, time, value) SELECT id << 32 | 90000, 4, ?1, "
            "substr(?1, 1, 16), ?2, ?2 FROM series")
            .Run(Statement::Blob{lines.data(), 32}, Statement::Blob{numbers.data(), 32})
            .ok());
    raw->reset();
    std::ostringstream bytes;
    bytes << std::ifstream(path_, std::ios::binary).rdbuf();
    sound_ = bytes.str();
  }
  absl::StatusOr<std::unique_ptr<Store>> Open() {
    SqliteOptions options;
    options.path = path_;
    options.readers = 1;
    return OpenSqliteStore(options);
  }
  void Write(const std::string& bytes) {
    for (const char* suffix : {"-wal", "-shm", "-journal"}) std::filesystem::remove(path_ + suffix);
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  static void ExpectReadable(const absl::Status& status) {
    EXPECT_TRUE(status.ok() || absl::IsNotFound(status) || absl::IsDataLoss(status)) << status;
  }
  // Opens the store and reads everything. Returns whether anything was found damaged.
  bool ReadAll() {
    const auto store = Open();
    if (!store.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(store.status()) || absl::IsFailedPrecondition(store.status()))
          << store.status();
      return true;
    }
    bool damaged = false;
    const auto expect = [&](const absl::Status& status) {
      ExpectReadable(status);
      damaged = damaged || absl::IsDataLoss(status);
    };
    Store& s = **store;
    expect(s.Load().status());
    expect(s.FindStudy("resnet", {}).status());
    expect(s.FindRequest("ada", "r").status());
    expect(s.ListStudies(0, 100, {}).status());
    expect(s.CountRuns({1, 2, 3}).status());
    expect(s.ListSummaries(0, 100).status());
    for (int64_t id = 1; id <= 3; ++id) {
      expect(s.GetStudy(id).status());
      expect(s.ListCells(id).status());
      expect(s.GetCells({id}).status());
      expect(s.ListCellValues(id).status());
      expect(s.GetCellValues(id, {0, 2}).status());
      expect(s.GetRun(id).status());
      RunFilter filter;
      filter.study_id = id;
      expect(s.ListRuns(filter).status());
      filter.state = RunState::kFailed;
      expect(s.ListRuns(filter).status());
      expect(s.ListAttempts(id).status());
      expect(s.GetAllocation(id).status());
      expect(s.ListStreams(id).status());
      expect(s.GetSummary(id).status());
      expect(s.ListCurveRows(id).status());
      expect(s.ReadPoints({id, "", {}}, [](Series) {}));
      expect(s.ReadPoints({id, "loss", 0, 10}, [](Series) {}));
    }
    return damaged;
  }
  // Changes the sound database by SQL and returns the result of reading the points of attempt 1.
  absl::Status PointsAfter(const std::string& sql) {
    Write(sound_);
    auto raw = Database::Open(path_, Database::Mode::kReadWrite, 1000);
    const absl::Status status = (*raw)->Execute("PRAGMA foreign_keys=OFF; " + sql);
    EXPECT_TRUE(status.ok()) << status;
    raw->reset();
    auto store = Open();
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? (*store)->ReadPoints({1, "", {}}, [](Series) {}) : store.status();
  }

  TemporaryDirectory directory_ = TemporaryDirectory::InMemory();
  std::string path_ = directory_.path() + "/scalelab.db";
  std::string sound_;
};

TEST_F(Damage, ASoundDatabaseIsNot) { EXPECT_FALSE(ReadAll()); }

TEST_F(Damage, AMissingIdentityIsDataLoss) {
  Write(sound_);
  auto raw = Database::Open(path_, Database::Mode::kReadWrite, 1000);
  ASSERT_TRUE((*raw)->Execute("DELETE FROM meta WHERE name = 'identity'").ok());
  raw->reset();
  const absl::Status status = Open().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST_F(Damage, AFlippedByteAnywhereIsNoCrash) {
  std::mt19937 random(7);
  const int rounds = getenv("SCALELAB_DAMAGE_ROUNDS") ? atoi(getenv("SCALELAB_DAMAGE_ROUNDS")) : 1000;
  int found = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string bytes = sound_;
    for (int flips = round % 4 == 0 ? 20 : 1; flips > 0; --flips) {
      // Damage the start of a page in half of the cases, because it contains the structure of the page.
      const size_t page = random() % (bytes.size() / 4096);
      const size_t at = page * 4096 + (round % 2 == 0 ? random() % 4096 : random() % 64);
      bytes[at] = static_cast<char>(bytes[at] ^ (1 + random() % 255));
    }
    SCOPED_TRACE(round);
    Write(bytes);
    found += ReadAll() ? 1 : 0;
  }
  EXPECT_GT(found, rounds / 20);
}

TEST_F(Damage, AFileThatEndsAnywhereIsNoCrash) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    Write(sound_.substr(
        0, round < 50 ? 4096 * (1 + random() % (sound_.size() / 4096)) : random() % sound_.size()));
    ReadAll();
  }
}

TEST_F(Damage, BlobsOfAnyLengthAreNoCrash) {
  for (const std::string table : {"point_axis", "point_chunk"}) {
    for (const char* column : {"line", "step", "time", "value"}) {
      if (table == "point_axis" && std::string(column) == "value") continue;
      for (int length :
           {0, 1, 7, 8, 9, 15, 16, 17, 23, 24, 31, 32, 33, 2999, 3000, 6000, 8999, 24'000, 100'000}) {
        ExpectReadable(PointsAfter("UPDATE " + table + " SET " + column + " = zeroblob(" +
                                   std::to_string(length) + ")"));
      }
    }
  }
}

TEST_F(Damage, NumbersOfAChunkThatMakeNoSenseAreNamed) {
  for (const std::string change :
       {"point_chunk SET count = 1 << 61", "point_chunk SET count = -1", "point_chunk SET count = 0",
        "point_chunk SET count = 4097", "point_axis SET count = 5", "point_chunk SET axis = 99",
        "point_chunk SET kind = 77", "point_chunk SET shift = 64 WHERE axis <> 0",
        "point_axis SET time_shift = -1"}) {
    const absl::Status status = PointsAfter("UPDATE " + change);
    EXPECT_TRUE(absl::IsDataLoss(status)) << change << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("attempt 1, metric \"")) << change;
    EXPECT_THAT(std::string(status.message()), HasSubstr("point_chunk")) << change;
    EXPECT_THAT(std::string(status.message()), HasSubstr("restore a backup")) << change;
  }
}

TEST_F(Damage, AnUnknownStateIsDataLoss) {
  Write(sound_);
  (*Database::Open(path_, Database::Mode::kReadWrite, 1000))
      ->Execute("UPDATE run SET state = 99 WHERE id = 1")
      .IgnoreError();
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::Status status = (*store)->GetRun(1).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("table run, column state has the value 99"));
  EXPECT_TRUE((*store)->GetRun(2).ok());
  EXPECT_TRUE(absl::IsDataLoss((*store)->ListCurveRows(1).status()));
}

}  // namespace
}  // namespace scalelab::db
