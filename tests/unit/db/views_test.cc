// Tests the views for sqlite3 and pandas.
#include <cmath>

#include "db/sqlite/sqlite.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

class Views : public ::testing::Test {
 protected:
  void SetUp() override {
    SqliteOptions options;
    options.path = path_;
    store_ = std::move(*OpenSqliteStore(options));
    WriteBatch batch;
    batch.studies = {AStudy(1, "strong")};
    batch.studies[0].state = StudyState::kFailed;
    batch.cell_values = {AValue(1, 0, "", R"({"model":"resnet20","epochs":9,"command":[],"momentum":0.9})"),
                         AValue(1, 1, "ranks", "4"), AValue(1, 2, "learning_rate", "0.30000000000000004"),
                         AValue(1, 3, "command", R"(["sh","-c","it's"])"), AValue(1, 4, "epochs", "2")};
    batch.cells = {ACell(1, 1, 4), ACell(2, 1)};
    batch.cells[0].key = "[3,1]";
    batch.cells[0].spec = "[1,2,3,4]";
    batch.cells[1].key = R"({"ranks":8})";  // as an older version stored it
    batch.cells[1].spec = R"({"ranks":8,"epochs":1})";
    batch.runs = {ARun(1, 1, 1), ARun(2, 1, 1, 1)};
    batch.runs[0].state = RunState::kSucceeded;
    batch.runs[0].started = 1'795'000'000'250'000;
    batch.runs[1].state = RunState::kFailed;
    batch.runs[1].cause = Cause::kOutOfMemory;
    batch.attempts = {AnAttempt(1, 1), AnAttempt(2, 2)};
    batch.attempts[0].state = AttemptState::kSucceeded;
    batch.attempts[1].throughput = 400.5;
    batch.allocations = {AnAllocation(1, 1)};
    batch.summaries = {ASummary(1, 1, 812.5)};
    batch.appends = {AnAppend(1, 0, 0, 100)};
    PointColumn steady = AColumn("loss", 3, {0.1, -2.5, std::nan(""), 1e308, 5e-324, 0});
    PointColumn uneven = AColumn("uneven", 0, {-1.0 / 3, 1, 2});
    uneven.line = {1, 2, 4'000'000'000};
    uneven.step = {-1, 7, INT64_MAX};
    uneven.time = {0.25, 1795000000.123456, -1e-300};
    // These values are stored in blocks: whole numbers, values of both signs, and special values.
    std::vector<double> wave;
    for (int i = 0; i < 300; ++i) wave.push_back(std::sin(0.01 * i));
    for (int i = 0; i < 5; ++i)
      wave[130 + i] = std::vector<double>{std::nan(""), -HUGE_VAL, -0.0, -1e308, 5e-324}[i];
    batch.appends[0].columns = {steady, uneven, AColumn("wave", 0, wave)};
    ASSERT_TRUE(store_->Commit(batch).ok());
    raw_ = std::move(*Database::Open(options.path, Database::Mode::kReadOnly, 1000));
  }
  std::string Text(const std::string& sql) { return raw_->QueryText(sql).value(); }

  TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/scalelab.db";
  std::unique_ptr<Store> store_;
  std::unique_ptr<Database> raw_;
};

TEST_F(Views, ShowNamesInPlaceOfNumbers) {
  EXPECT_EQ(Text("SELECT state FROM studies"), "FAILED");
  EXPECT_EQ(Text("SELECT study || ' ' || engine || ' ' || ranks || ' ' || state || ' ' || throughput || ' ' "
                 "|| started "
                 "FROM runs WHERE id = 1"),
            "strong native/ddp 4 SUCCEEDED 812.5 2026-11-18T11:06:40.250Z");
  EXPECT_EQ(Text("SELECT state || ' ' || cause || ' ' || ifnull(throughput, 'none') || ' ' || "
                 "ifnull(started, 'never') FROM "
                 "runs WHERE id = 2"),
            "FAILED OUT_OF_MEMORY none never");
  EXPECT_EQ(Text("SELECT state || ' ' || study_id || ' ' || throughput FROM attempts WHERE id = 1"),
            "SUCCEEDED 1 812.5");
  EXPECT_EQ(Text("SELECT throughput || ' ' || ifnull(epoch_seconds, 'none') FROM attempts WHERE id = 2"),
            "400.5 none");
  EXPECT_EQ(Text("SELECT state FROM allocations"), "INTENDED");
  EXPECT_EQ(Text("SELECT json_extract(metrics, '$.run/throughput') FROM runs WHERE id = 1"), "812.5");
}

TEST_F(Views, ShowAllParametersOfACell) {
  EXPECT_EQ(Text("SELECT key FROM cells WHERE id = 1"), R"({"command":["sh","-c","it's"],"ranks":4})");
  EXPECT_EQ(Text("SELECT key FROM runs WHERE id = 1"), R"({"command":["sh","-c","it's"],"ranks":4})");
  EXPECT_EQ(Text("SELECT spec FROM cells WHERE id = 1"),
            R"({"model":"resnet20","epochs":2,"command":["sh","-c","it's"],"momentum":0.9,"ranks":4,)"
            R"("learning_rate":0.30000000000000004})");
  EXPECT_EQ(Text("SELECT key || spec FROM cells WHERE id = 2"), R"({"ranks":8}{"ranks":8,"epochs":1})");
  EXPECT_EQ(Text("SELECT engine || ' ' || ranks FROM cells WHERE id = 1"), "native/ddp 4");
}

TEST_F(Views, PointsAreDecodedExactlyAsTheStoreReadsThem) {
  EXPECT_EQ(*raw_->QueryInt("SELECT count(*) FROM points"), 309);
  EXPECT_EQ(*raw_->QueryInt("SELECT count(*) FROM point_chunk WHERE kind = 12"), 1) << "in blocks";
  int checked = 0;
  ASSERT_TRUE(store_
                  ->ReadPoints({1, "", {}},
                               [&](Series series) {
                                 Statement rows(*raw_,
                                                "SELECT line, step, time, value FROM points WHERE attempt_id "
                                                "= 1 AND key = ? ORDER BY line");
                                 rows.Bind(series.key);
                                 for (size_t i = 0; i < series.line.size(); ++i, ++checked) {
                                   int64_t line = 0, step = 0;
                                   double time = 0, value = 0;
                                   ASSERT_TRUE(rows.Step()) << rows.status();
                                   rows.Read(line, step, time, value);
                                   EXPECT_EQ(line, series.line[i]);
                                   EXPECT_EQ(step, series.step[i]);
                                   EXPECT_EQ(time, series.time[i]);
                                   if (!std::isfinite(series.value[i]))
                                     EXPECT_TRUE(std::isnan(value));
                                   else
                                     EXPECT_EQ(value, series.value[i]);
                                 }
                                 EXPECT_FALSE(rows.Step());
                               })
                  .ok());
  EXPECT_EQ(checked, 309);
}

TEST_F(Views, PointsOfOlderDatabasesAreShownToo) {
  const std::vector<int64_t> lines = {5, 7}, steps = {-1, 7, INT64_MAX};
  const std::vector<double> numbers = {0.25, -1.0 / 3, 1e-300};
  auto raw = std::move(*Database::Open(path_, Database::Mode::kReadWrite, 1000));
  ASSERT_TRUE(
      Statement(
          *raw,
          "INSERT INTO point_chunk (id, count, line, step, time, value) SELECT (e.id << 32) + 100, 3, ?, ?, "
          "?, ? FROM series e JOIN metric_key k ON k.id = e.key_id WHERE k.name = 'loss'")
          .Run(Statement::Blob{lines.data(), 16}, Statement::Blob{steps.data(), 24},
               Statement::Blob{numbers.data(), 24}, Statement::Blob{numbers.data(), 24})
          .ok());
  Statement rows(*raw_, "SELECT line, step, time, value FROM points WHERE key = 'loss' LIMIT 3");
  int64_t line = 0, step = 0;
  double time = 0, value = 0;
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(rows.Step()) << rows.status();
    rows.Read(line, step, time, value);
    EXPECT_EQ(line, 5 + 2 * static_cast<int64_t>(i));
    EXPECT_EQ(step, steps[i]);
    EXPECT_EQ(time, numbers[i]);
    EXPECT_EQ(value, numbers[i]);
  }
}

TEST_F(Views, OneAttemptsPointsAreFoundWithoutReadingTheOthers) {
  Statement plan(*raw_, "EXPLAIN QUERY PLAN SELECT value FROM points WHERE attempt_id = 1 AND key = 'loss'");
  std::string all;
  while (plan.Step()) {
    int64_t id, parent, unused;
    std::string detail;
    plan.Read(id, parent, unused, detail);
    all += detail + "\n";
  }
  EXPECT_THAT(all, ::testing::HasSubstr("SEARCH c USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)")) << all;
}

}  // namespace
}  // namespace scalelab::db
