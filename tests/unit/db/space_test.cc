// Tests the space that points take, and that deletion gives it back.
#include <random>

#include "db/sqlite/sqlite.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

class Space : public ::testing::Test {
 protected:
  void Open() {
    store_.reset();
    auto store = OpenSqliteStore(options_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = std::move(*store);
  }
  void SetUp() override { Open(); }
  void Commit(const WriteBatch& batch) {
    const absl::Status status = store_->Commit(batch);
    ASSERT_TRUE(status.ok()) << status;
  }
  void CommitAttempt(int64_t id) {
    WriteBatch batch;
    batch.studies = {AStudy(id)};
    batch.cell_values = {AValue(id, 0, "", "{}")};
    batch.cells = {ACell(id, id)};
    batch.runs = {ARun(id, id, id)};
    batch.attempts = {AnAttempt(id, id)};
    Commit(batch);
  }
  void End(int64_t attempt) {
    WriteBatch batch;
    batch.attempts = {AnAttempt(attempt, attempt)};
    batch.attempts[0].state = AttemptState::kSucceeded;
    Commit(batch);
  }
  void MaintainAll() {
    while (store_->Maintain().value()) {
    }
  }
  // Closes the store and returns a number from the file.
  int64_t Query(const std::string& sql) {
    store_.reset();
    const int64_t number =
        (*Database::Open(options_.path, Database::Mode::kReadOnly, 1000))->QueryInt(sql).value();
    Open();
    return number;
  }
  int64_t UsedBytes() { return (Query("PRAGMA page_count") - Query("PRAGMA freelist_count")) * 4096; }
  int64_t FileSize() {
    store_.reset();
    const int64_t size = static_cast<int64_t>(std::filesystem::file_size(options_.path));
    Open();
    return size;
  }
  // Returns the metrics of `steps` steps like those of a real training: durations as differences of a clock
  // in nanoseconds, a learning rate, and the loss as a float.
  StreamAppend Training(int64_t attempt, int64_t first, int64_t steps) {
    StreamAppend append = AnAppend(attempt, 0, first * 10, (first + steps) * 10);
    for (const char* key : {"step/total_s", "step/data_s", "step/comm_s", "step/throughput", "train/loss"}) {
      append.columns.push_back({key, {}, {}, {}, {}});
    }
    for (int64_t line = first; line < first + steps; ++line) {
      const double total = 0.031 * (1 + 0.1 * uniform_(random_));
      clock_ += total + (line % 400 == 0 ? 2.5 : 0);
      const double values[] = {
          std::round(total * 1e9) / 1e9, std::round(total * 1e8 * uniform_(random_)) / 1e9,
          total * 0.3 * uniform_(random_), 256 / total,
          static_cast<float>(2.3 / (1 + 0.001 * static_cast<double>(line)) + 0.1 * uniform_(random_))};
      for (size_t k = 0; k < 5; ++k) {
        append.columns[k].line.push_back(line);
        append.columns[k].step.push_back(line);
        append.columns[k].time.push_back(clock_);
        append.columns[k].value.push_back(values[k]);
      }
    }
    return append;
  }

  TemporaryDirectory directory_;
  SqliteOptions options_{.path = directory_.path() + "/scalelab.db"};
  std::unique_ptr<Store> store_;
  std::mt19937 random_{1};
  std::uniform_real_distribution<double> uniform_{0, 1};
  double clock_ = 1795000000.25;
};

TEST_F(Space, APointOfATrainingTakesLessThanEightBytesHoweverItWasReported) {
  for (const int64_t steps : {1, 20, 2000}) {
    SCOPED_TRACE(steps);
    const int64_t id = steps + 1;
    CommitAttempt(id);
    const int64_t before = UsedBytes(), total = 20'000;
    for (int64_t line = 0; line < total;) {
      WriteBatch batch;
      for (int part = 0; part < 100 && line < total; ++part, line += steps) {
        batch.appends.push_back(Training(id, line, steps));
      }
      Commit(batch);
    }
    End(id);
    MaintainAll();
    const double bytes = static_cast<double>(UsedBytes() - before) / static_cast<double>(5 * total);
    std::printf("%ld steps a part: %.2f bytes a point\n", static_cast<long>(steps), bytes);
    EXPECT_LT(bytes, 8);
    WriteBatch gone;
    gone.deleted_studies = {id};
    Commit(gone);
    MaintainAll();
  }
}

TEST_F(Space, SmoothMetricsOfBothSignsTakeLessThanEightBytesAPoint) {
  constexpr int kRuns = 50, kMetrics = 10, kLines = 1000;
  CommitAttempt(1);
  const int64_t before = UsedBytes();
  for (int64_t id = 2; id < 2 + kRuns; ++id) {
    CommitAttempt(id);
    WriteBatch batch;
    batch.appends = {AnAppend(id, 0, 0, 10 * kLines)};
    for (int k = 1; k <= kMetrics; ++k) {
      std::vector<double> values;
      for (int line = 0; line < kLines; ++line) values.push_back(std::sin(0.001 * line * k));
      batch.appends[0].columns.push_back(AColumn("metric " + std::to_string(k), 0, values));
    }
    Commit(batch);
    End(id);
  }
  MaintainAll();
  const double bytes = static_cast<double>(UsedBytes() - before) / (kRuns * kMetrics * kLines);
  std::printf("%.2f bytes a point\n", bytes);
  EXPECT_LT(bytes, 7.5);
}

TEST_F(Space, TheEndOfAnAttemptInTheBatchOfItsPointsIsEnoughToMergeThem) {
  CommitAttempt(1);
  WriteBatch batch;
  for (int part = 0; part < 10; ++part) batch.appends.push_back(Training(1, part, 1));
  batch.attempts = {AnAttempt(1, 1)};
  batch.attempts[0].state = AttemptState::kFailed;
  Commit(batch);
  EXPECT_EQ(Query("SELECT count(*) FROM point_chunk"), 50);
  MaintainAll();
  EXPECT_EQ(Query("SELECT count(*) FROM point_chunk"), 5);
  EXPECT_EQ(Query("SELECT count(*) FROM point_axis"), 1) << "the five metrics share it";
}

TEST_F(Space, DeletingALargeStudyMakesTheFileSmaller) {
  CommitAttempt(1);
  for (int64_t part = 0; part < 60; ++part) {
    WriteBatch batch;
    batch.appends = {Training(1, part * 20'000, 20'000)};
    Commit(batch);
  }
  CommitAttempt(2);
  const int64_t before = FileSize();
  WriteBatch batch;
  batch.deleted_studies = {1};
  Commit(batch);
  MaintainAll();
  EXPECT_LT(FileSize(), before / 2 + (16 << 20)) << "of " << before;
  EXPECT_TRUE(store_->GetRun(2).ok());
  EXPECT_EQ(Query("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'"), 0);
}

TEST_F(Space, ADeletedStudyLeavesNoRows) {
  CommitAttempt(1);
  CommitAttempt(2);
  WriteBatch batch;
  batch.allocations = {AnAllocation(1, 1)};
  batch.allocations[0].state = AllocationState::kEnded;
  batch.provenance = {{1, "{}"}};
  batch.epochs = {{1, 0, 0, 1.0, {}}};
  batch.summaries = {ASummary(1, 1, 100)};
  batch.summaries[0].times.ranks = {{1, 1, 1}};
  batch.appends = {Training(1, 0, 10), AnAppend(2, 0, 0, 10)};
  batch.appends[1].columns = {AColumn("train/loss", 0, {1})};
  Commit(batch);
  End(1);
  batch.Clear();
  batch.deleted_studies = {1};
  Commit(batch);
  MaintainAll();
  for (const char* table : {"study", "cell", "cell_value", "run", "attempt", "stream", "series", "metric_key",
                            "point_chunk", "point_axis", "run_count"}) {
    EXPECT_EQ(Query(std::string("SELECT count(*) FROM ") + table), 1) << table << ": the row of study 2";
  }
  for (const char* table : {"allocation", "provenance", "epoch", "run_summary", "run_metrics", "run_times",
                            "deleted_study", "merge_task"}) {
    EXPECT_EQ(Query(std::string("SELECT count(*) FROM ") + table), 0) << table;
  }
  // The writer does not use the ids of deleted rows.
  batch.Clear();
  batch.appends = {AnAppend(2, 0, 10, 20)};
  batch.appends[0].columns = {AColumn("step/total_s", 1, {1})};
  Commit(batch);
  EXPECT_EQ(Query("SELECT count(*) FROM points"), 2);
}

}  // namespace
}  // namespace scalelab::db
