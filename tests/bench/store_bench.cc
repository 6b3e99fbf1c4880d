#include "tests/bench/store_bench.h"

#include <algorithm>

#include "db/point_codec.h"
#include "db/sqlite/sqlite.h"
#include "tests/bench/bench_rows.h"

namespace scalelab::bench {
namespace {

using db::Store;
using db::WriteBatch;

// Returns commits of `points` points each, from 4 ranks, which take turns.
std::vector<WriteBatch> PointBatches(int64_t points, int64_t total) {
  std::vector<WriteBatch> batches;
  const int64_t lines = std::max<int64_t>(1, points / kKeys / 4);
  for (int64_t part = 0, done = 0; done < total; ++part, done += lines * kKeys * 4) {
    WriteBatch& batch = batches.emplace_back();
    for (int rank = 0; rank < 4; ++rank) batch.appends.push_back(Part(1, rank, part, lines));
  }
  return batches;
}

int64_t PointsOf(const std::vector<WriteBatch>& batches) {
  int64_t points = 0;
  for (const WriteBatch& batch : batches) {
    for (const db::StreamAppend& append : batch.appends) {
      for (const db::PointColumn& column : append.columns) points += static_cast<int64_t>(column.line.size());
    }
  }
  return points;
}

double StorePointsPerSecond(const BenchOptions& options, const std::vector<WriteBatch>& batches) {
  const Place place(options, "store");
  std::unique_ptr<Store> store = place.Open();
  WriteBatch first;
  first.studies = {Study(1)};
  first.cells = {Cell(1, 1, 4)};
  first.runs = {Run(1, 1, 1, 0)};
  first.attempts = {Attempt(1, 1)};
  Check(store->Commit(first));
  const double seconds = Seconds([&] {
    for (const WriteBatch& batch : batches) Check(store->Commit(batch));
  });
  return static_cast<double>(PointsOf(batches)) / seconds;
}

std::unique_ptr<db::Database> RawDatabase(const Place& place, const std::string& schema) {
  auto raw = db::Database::Open(place.file(), db::Database::Mode::kReadWrite, 1000);
  Check(raw.status());
  Check((*raw)->Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-16384;" +
                        schema));
  return std::move(*raw);
}

// A carefully written bulk insert with plain SQLite: one transaction per batch, a prepared
// statement, clustered rows.
double RawRowsPerSecond(const BenchOptions& options, const std::vector<WriteBatch>& batches) {
  const Place place(options, "raw");
  std::unique_ptr<db::Database> raw =
      RawDatabase(place,
                  "CREATE TABLE point (attempt_id INTEGER, key_id INTEGER, rank INTEGER, line INTEGER, step "
                  "INTEGER, time "
                  "REAL, value REAL, PRIMARY KEY (attempt_id, key_id, rank, line)) WITHOUT ROWID");
  const double seconds = Seconds([&] {
    for (const WriteBatch& batch : batches) {
      db::Transaction transaction(*raw, db::Transaction::Kind::kWrite);
      db::Statement insert(*raw, "INSERT INTO point VALUES (?, ?, ?, ?, ?, ?, ?)");
      for (const db::StreamAppend& append : batch.appends) {
        int64_t key = 0;
        for (const db::PointColumn& column : append.columns) {
          ++key;
          for (size_t i = 0; i < column.line.size(); ++i) {
            Check(insert.Run(append.attempt_id, key, append.rank, column.line[i], column.step[i],
                             column.time[i], column.value[i]));
          }
        }
      }
      Check(transaction.Commit());
      if (raw->wal_pages() > 1000) {  // SQLite's default
        Check(raw->Execute("PRAGMA wal_checkpoint(PASSIVE)"));
        raw->reset_wal_pages();
      }
    }
  });
  return static_cast<double>(PointsOf(batches)) / seconds;
}

double RawChunksPerSecond(const BenchOptions& options, const std::vector<WriteBatch>& batches) {
  const Place place(options, "chunks");
  std::unique_ptr<db::Database> raw = RawDatabase(place,
                                                  "CREATE TABLE point_chunk (id INTEGER PRIMARY KEY, count "
                                                  "INTEGER NOT NULL, line BLOB NOT NULL, step BLOB NOT NULL, "
                                                  "time BLOB NOT NULL, value BLOB NOT NULL) STRICT");
  const double seconds = Seconds([&] {
    for (const WriteBatch& batch : batches) {
      db::Transaction transaction(*raw, db::Transaction::Kind::kWrite);
      db::Statement insert(*raw, "INSERT INTO point_chunk VALUES (?, ?, ?, ?, ?, ?)");
      for (const db::StreamAppend& append : batch.appends) {
        int64_t key = 0;
        for (const db::PointColumn& column : append.columns) {
          const size_t count = column.line.size(), bytes = count * 8;
          using Blob = db::Statement::Blob;
          Check(insert.Run(db::ChunkId(append.rank * kKeys + ++key, column.line[0]), count,
                           Blob{column.line.data(), 16}, Blob{column.step.data(), 16},
                           Blob{column.time.data(), bytes}, Blob{column.value.data(), bytes}));
        }
      }
      Check(transaction.Commit());
      if (raw->wal_pages() > 4096) {
        Check(raw->Execute("PRAGMA wal_checkpoint(PASSIVE)"));
        raw->reset_wal_pages();
      }
    }
  });
  return static_cast<double>(PointsOf(batches)) / seconds;
}

Figure Compared(std::string name, double value, std::string unit, std::string against, double against_value) {
  return {std::move(name), value, std::move(unit), std::move(against), against_value, value / against_value};
}
// Compares with the project's fixed target for the whole service. The database is only a part of the service.
Figure Target(std::string name, double target, double value, std::string unit) {
  return {std::move(name), value, std::move(unit), "target", target, value / target};
}

void BenchIngest(const BenchOptions& options, std::vector<Figure>& figures) {
  for (const int64_t points : {1'000, 10'000, 100'000}) {
    const double wanted = points == 1'000 ? 2e5 : 1e6;
    const auto batches = PointBatches(points, std::max(points, static_cast<int64_t>(wanted * options.scale)));
    const double store = StorePointsPerSecond(options, batches);
    const std::string suffix = "_" + std::to_string(points);
    figures.push_back(Compared("store/points" + suffix, store, "points/s", "SQLite, a row a point",
                               RawRowsPerSecond(options, batches)));
    figures.push_back(Compared("store/chunks" + suffix, store, "points/s", "SQLite, plain arrays",
                               RawChunksPerSecond(options, batches)));
  }
}

void BenchSubmit(const BenchOptions& options, std::vector<Figure>& figures) {
  const Place place(options, "submit");
  std::unique_ptr<Store> store = place.Open();
  int64_t study = 0, cell = 0, run = 0, attempt = 0;
  figures.push_back(Target("store/study_of_10000_runs", 1000,
                           MedianMilliseconds(5,
                                              [&] {
                                                WriteBatch batch;
                                                batch.studies = {Study(++study)};
                                                batch.cell_values = CellValues(study);
                                                for (int c = 0; c < 1000; ++c) {
                                                  batch.cells.push_back(Cell(++cell, study, 1 << c % 8));
                                                  for (int r = 0; r < 10; ++r)
                                                    batch.runs.push_back(Run(++run, study, cell, r));
                                                }
                                                Check(store->Commit(batch));
                                              }),
                           "ms"));

  const int singles = std::max(50, static_cast<int>(20'000 * options.scale));
  const int64_t first_run = run + 1;
  double seconds = Seconds([&] {
    for (int done = 0; done < singles; done += 50) {
      WriteBatch batch;
      for (int i = 0; i < 50; ++i) {
        batch.studies.push_back(Study(++study));
        batch.studies.back().request_id = "request-" + std::to_string(study);
        batch.cell_values.push_back(Common(study));
        batch.cells.push_back(Cell(++cell, study, 1));
        batch.cells.back().key = batch.cells.back().spec = "[]";
        batch.runs.push_back(Run(++run, study, cell, 0));
      }
      Check(store->Commit(batch));
    }
  });
  figures.push_back(Target("store/single_studies", 5000, singles / seconds, "studies/s"));

  seconds = Seconds([&] {
    for (int done = 0; done < singles; done += 50) {
      WriteBatch batch;
      for (int i = 0; i < 50; ++i) {
        db::RunRow row = Run(first_run + done + i, 5 + 1 + done + i, 5000 + 1 + done + i, 0);
        row.state = db::RunState::kSucceeded;
        row.attempts = 1;
        batch.runs.push_back(row);
        db::AttemptRow row_of_attempt = Attempt(++attempt, row.id);
        row_of_attempt.state = db::AttemptState::kSucceeded;
        batch.attempts.push_back(row_of_attempt);
        batch.summaries.push_back(Summary(row.id, attempt));
      }
      Check(store->Commit(batch));
    }
  });
  figures.push_back(Target("store/completions", 5000, singles / seconds, "runs/s"));
}

void BenchCounts(const BenchOptions& options, std::vector<Figure>& figures) {
  const Place place(options, "counts");
  std::unique_ptr<Store> store = place.Open();
  for (int64_t study = 1; study <= 10; ++study) {
    WriteBatch batch;
    batch.studies = {Study(study)};
    batch.cells = {Cell(study, study, 1)};
    for (int r = 0; r < 100'000; ++r) batch.runs.push_back(Run(study * 100'000 + r, study, study, r));
    Check(store->Commit(batch));
  }
  figures.push_back(Target("store/list_large_studies", 10,
                           MedianMilliseconds(7,
                                              [&] {
                                                std::vector<int64_t> ids;
                                                const auto studies = store->ListStudies(0, 10, {});
                                                Check(studies.status());
                                                for (const db::StudyRow& row : *studies)
                                                  ids.push_back(row.id);
                                                Check(store->CountRuns(ids).status());
                                              }),
                           "ms"));
}

}  // namespace

std::vector<Figure> RunStoreBench(const BenchOptions& options) {
  std::vector<Figure> figures;
  BenchIngest(options, figures);
  BenchSubmit(options, figures);
  BenchCounts(options, figures);
  return figures;
}

}  // namespace scalelab::bench
