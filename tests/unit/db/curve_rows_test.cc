// Tests that cached rows of curves always equal those in the database.
#include "db/curve_rows.h"

#include <atomic>
#include <random>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "db/reads.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

auto Tie(const CurveRow& row) {
  return std::tie(row.run_id, row.cell_id, row.repeat, row.state, row.cause, row.attempt_id, row.throughput,
                  row.epoch_seconds, row.comm_share, row.peak_memory, row.accuracy, row.train_loss,
                  row.time_to_accuracy, row.fingerprint, row.started, row.finished, row.attempts,
                  row.reported_step, row.nodes_hash, row.message, row.noisy_attempts, row.continued_attempts,
                  row.cancelled_attempts);
}

class CurveRows : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { Open(directory_); }
  void Open(const TemporaryDirectory& directory) {
    SqliteOptions options;
    options.path = directory.path() + "/scalelab.db";
    options.rollback_journal = GetParam();
    options.fewest_rows_kept = 3;
    store_ = std::move(*OpenSqliteStore(options));
    raw_ = std::move(*Database::Open(options.path, Database::Mode::kReadOnly, 1000));
  }
  void Commit(const WriteBatch& batch) {
    const absl::Status status = store_->Commit(batch);
    ASSERT_TRUE(status.ok()) << status;
  }
  // Commits a study of `runs` runs, of which several share a cell, in another order than that of the curve.
  void CommitStudy(int64_t id, int runs) {
    WriteBatch batch;
    batch.studies = {AStudy(id)};
    batch.cells = {ACell(2 * id, id), ACell(2 * id + 1, id)};
    for (int i = 0; i < runs; ++i) batch.runs.push_back(NewRun(id));
    Commit(batch);
  }
  RunRow NewRun(int64_t study) {
    ++last_run_;
    study_of_[last_run_] = study;
    return RunAt(last_run_);
  }
  RunRow RunAt(int64_t id) {
    const int64_t study = study_of_.at(id);
    RunRow run = ARun(id, study, 2 * study + id % 2, static_cast<int>(1000 - id));
    run.position = static_cast<int>(id);
    return run;
  }
  // Expects that the rows that the store lists equal those in the database.
  void ExpectCurrent(int64_t study) {
    const absl::StatusOr<std::vector<CurveRow>> expected = ListCurveRows(*raw_, study);
    const absl::StatusOr<SharedCurveRows> listed = store_->ListCurveRows(study);
    ASSERT_TRUE(expected.ok() && listed.ok()) << expected.status() << listed.status();
    const std::vector<CurveRow>& rows = **listed;
    ASSERT_EQ(rows.size(), expected->size());
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(Tie(rows[i]), Tie((*expected)[i])) << i;
  }

  TemporaryDirectory directory_ = TemporaryDirectory::InMemory();
  std::unique_ptr<Store> store_;
  std::unique_ptr<Database> raw_;
  int64_t last_run_ = 0;
  std::map<int64_t, int64_t> study_of_;  // by run
};

INSTANTIATE_TEST_SUITE_P(Journals, CurveRows, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "RollbackJournal" : "Wal"; });

TEST_P(CurveRows, EveryChangeIsInTheNextRows) {
  std::mt19937 random(1);
  for (int64_t study = 1; study <= 4; ++study) CommitStudy(study, 40);
  std::set<int64_t> deleted;
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    WriteBatch batch;
    const auto some_run = [&] { return static_cast<int64_t>(1 + random() % last_run_); };
    for (int changes = 1 + random() % 5; changes > 0; --changes) {
      const int64_t id = some_run();
      if (deleted.contains(study_of_[id])) continue;
      RunRow run = RunAt(id);
      run.state = static_cast<RunState>(1 + random() % 5);
      run.attempts = static_cast<int>(random() % 4);
      run.started = static_cast<Micros>(random());
      run.message = random() % 3 == 0 ? absl::StrCat("message ", random()) : "";
      const bool has_run = random() % 2 == 0;
      if (has_run) batch.runs.push_back(run);
      if (has_run && random() % 2 == 0) continue;
      RunSummary summary = ASummary(id, id, static_cast<double>(random()));
      if (random() % 2 == 0) summary.accuracy = static_cast<double>(random());
      summary.fingerprint = absl::StrCat("fingerprint ", random() % 3);
      batch.summaries.push_back(summary);
    }
    const int64_t study = 1 + static_cast<int64_t>(random() % 4);
    if (random() % 20 == 0 && !deleted.contains(study)) batch.runs.push_back(NewRun(study));
    if (round == 300) {
      batch.Clear();
      batch.deleted_studies = {2};
      deleted.insert(2);
    }
    Commit(batch);
    if (random() % 10 == 0) {
      ASSERT_TRUE(
          store_
              ->WriteRows([&](Database& db) {
                return Statement(db, "UPDATE run SET repeat = repeat + 1000 WHERE id = ?").Run(some_run());
              })
              .ok());
    }
    if (random() % 10 == 0) {
      ASSERT_TRUE(store_->Maintain().ok());
    }
    for (int64_t listed = 1; listed <= 4; ++listed) {
      if (random() % 2 == 0) ExpectCurrent(listed);
    }
  }
  EXPECT_THAT(*store_->ListCurveRows(2).value(), IsEmpty());
  for (int64_t study = 1; study <= 4; ++study) ExpectCurrent(study);
}

TEST_P(CurveRows, RowsThatACallerHasDoNotChange) {
  CommitStudy(1, 10);
  const SharedCurveRows before = store_->ListCurveRows(1).value();
  EXPECT_EQ(store_->ListCurveRows(1).value(), before) << "without a change, callers share the rows";
  const int attempts = before->front().attempts;
  WriteBatch batch;
  batch.runs = {RunAt(before->front().run_id)};
  batch.runs[0].attempts = attempts + 1;
  Commit(batch);
  EXPECT_EQ(store_->ListCurveRows(1).value()->front().attempts, attempts + 1);
  EXPECT_EQ(before->front().attempts, attempts);
}

TEST_P(CurveRows, MoreChangesThanAreRememberedAreReadToo) {
  CommitStudy(1, 100);
  ExpectCurrent(1);
  for (int round = 0; round < 500; ++round) {
    WriteBatch batch;
    for (int64_t id = 1; id <= 100; ++id) {
      batch.runs.push_back(RunAt(id));
      batch.runs.back().attempts = round;
    }
    Commit(batch);
  }
  ExpectCurrent(1);
  EXPECT_EQ(store_->ListCurveRows(1).value()->front().attempts, 499);
}

TEST_P(CurveRows, ACommitThatFailsChangesNothing) {
  CommitStudy(1, 10);
  ExpectCurrent(1);
  WriteBatch batch;
  batch.runs = {RunAt(1)};
  batch.runs[0].attempts = 7;
  batch.attempts = {AnAttempt(1, 1)};
  batch.appends = {AnAppend(1, 0, 500, 600)};
  EXPECT_FALSE(store_->Commit(batch).ok());
  ExpectCurrent(1);
  batch.appends.clear();
  Commit(batch);
  ExpectCurrent(1);
}

TEST_P(CurveRows, AReaderSeesEachCommitThatHasReturned) {
  // The database is on a disk, so that a commit takes long enough for a reader to begin during it.
  const TemporaryDirectory disk;
  Open(disk);
  const int kRuns = 50, kCommits = GetParam() ? 30 : 200;
  CommitStudy(1, kRuns);
  std::atomic<int> committed = 0;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      while (committed < kCommits) {
        const int before = committed;
        const std::vector<CurveRow> rows = *store_->ListCurveRows(1).value();
        ASSERT_THAT(rows, SizeIs(kRuns));
        // Commit i writes i to run 1 + i % kRuns.
        for (const CurveRow& row : rows) {
          const int age = static_cast<int>((before - (row.run_id - 1) + kRuns) % kRuns);
          ASSERT_GE(row.attempts, before - age) << "run " << row.run_id << " after commit " << before;
        }
      }
    });
  }
  for (int i = 1; i <= kCommits; ++i) {
    WriteBatch batch;
    batch.runs = {RunAt(1 + i % kRuns)};
    batch.runs[0].attempts = i;
    Commit(batch);
    committed = i;
  }
  for (std::thread& reader : readers) reader.join();
  ExpectCurrent(1);
  raw_.reset();
  store_.reset();
}

class Cache : public CurveRows {
 protected:
  absl::StatusOr<SharedCurveRows> List(CurveRowCache& cache, int64_t study) {
    return cache.List(study, [&](absl::FunctionRef<absl::Status(Database&)> read) { return read(*raw_); });
  }
  // Changes a run without informing the cache.
  void SetAttempts(int64_t run, int attempts) {
    WriteBatch batch;
    batch.runs = {RunAt(run)};
    batch.runs[0].attempts = attempts;
    Commit(batch);
  }
};

INSTANTIATE_TEST_SUITE_P(Journals, Cache, ::testing::Values(false));

TEST_P(Cache, OnlyChangedRunsOfLargeStudiesAreReadAgain) {
  CommitStudy(1, 5);
  CommitStudy(2, 4);
  CurveRowCache cache(/*fewest=*/5, /*most=*/100);
  for (const int64_t study : {1, 2}) ASSERT_TRUE(List(cache, study).ok());
  for (const int64_t run : {2, 4, 7}) SetAttempts(run, 9);
  const auto attempts_of = [&](int64_t study, int64_t run) {
    const SharedCurveRows rows = List(cache, study).value();
    for (const CurveRow& row : *rows) {
      if (row.run_id == run) return row.attempts;
    }
    return -1;
  };
  EXPECT_EQ(attempts_of(2, 7), 9) << "a small study is not kept";
  EXPECT_NE(attempts_of(1, 2), 9);
  cache.Changed(std::vector<int64_t>{2});
  EXPECT_EQ(attempts_of(1, 2), 9);
  SetAttempts(5, 8);
  EXPECT_NE(attempts_of(1, 5), 8);
  cache.DropUnused(absl::Now() + absl::Minutes(2));
  EXPECT_EQ(attempts_of(1, 5), 8);
}

TEST_P(Cache, TheStudiesThatWereListedLastAreKept) {
  for (int64_t study = 1; study <= 3; ++study) CommitStudy(study, 10);
  CurveRowCache cache(/*fewest=*/5, /*most=*/20);
  for (const int64_t study : {1, 2, 1, 3}) ASSERT_TRUE(List(cache, study).ok());
  for (const int64_t run : {1, 11, 21}) SetAttempts(run, 9);
  const auto any_current = [&](int64_t study) {
    const std::vector<CurveRow> rows = *List(cache, study).value();
    return std::any_of(rows.begin(), rows.end(), [](const CurveRow& row) { return row.attempts == 9; });
  };
  EXPECT_FALSE(any_current(1));
  EXPECT_FALSE(any_current(3));
  EXPECT_TRUE(any_current(2)) << "it was dropped and is read again";
}

TEST_P(Cache, AfterAnErrorAllRowsAreReadAgain) {
  CommitStudy(1, 10);
  CurveRowCache cache(/*fewest=*/5, /*most=*/20);
  ASSERT_TRUE(List(cache, 1).ok());
  SetAttempts(1, 9);
  cache.Changed(std::vector<int64_t>{1});
  const auto fail = [](absl::FunctionRef<absl::Status(Database&)>) { return absl::UnavailableError("busy"); };
  EXPECT_FALSE(cache.List(1, fail).ok());
  const std::vector<CurveRow> rows = *List(cache, 1).value();
  EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [](const CurveRow& row) { return row.attempts == 9; }));
}

}  // namespace
}  // namespace scalelab::db
