#include "tests/bench/query_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>

#include "db/point_codec.h"
#include "db/sqlite.h"
#include "db/sqlite_store.h"
#include "server/analysis/curve.h"
#include "server/analysis/downsample.h"

namespace scalelab::bench {
namespace {

using db::Store;
using db::WriteBatch;

constexpr int kKeys = 10;  // metrics that a step reports

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "query bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double MedianMilliseconds(int times, const std::function<void()>& work) {
  std::vector<double> all;
  for (int i = 0; i < times; ++i) all.push_back(1e3 * Seconds(work));
  std::nth_element(all.begin(), all.begin() + times / 2, all.end());
  return all[times / 2];
}

// A folder for one measurement, removed with it.
class Place {
 public:
  Place(const BenchOptions& options, const std::string& name) : path_(options.directory + "/bench-" + name) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Place() { std::filesystem::remove_all(path_); }
  std::string file() const { return path_ + "/scalelab.db"; }
  std::unique_ptr<Store> Open() const {
    db::SqliteOptions options;
    options.path = file();
    auto store = db::OpenSqliteStore(options);
    Check(store.status());
    return std::move(*store);
  }

 private:
  std::string path_;
};

db::StudyRow Study(int64_t id) {
  db::StudyRow row;
  row.id = id;
  row.name = "bench";
  row.owner = "bench";
  row.spec =
      R"({"study":"bench","fixed":{"model":"resnet20"},"matrix":[{"key":"ranks","values":[1,2,4,8]}]})";
  row.created = 1'795'000'000'000'000;
  return row;
}

db::CellRow Cell(int64_t id, int64_t study, int ranks, const std::string& engine = "native/ddp") {
  db::CellRow row;
  row.id = id;
  row.study_id = study;
  row.position = static_cast<int>(id % 1'000'000);
  row.engine = engine;
  row.model = "resnet20";
  row.precision = "fp32";
  row.backend = "auto";
  row.ranks = ranks;
  row.global_batch = 256;
  row.key = R"({"engine":")" + engine + R"(","ranks":)" + std::to_string(ranks) + "}";
  row.spec = std::string(600, 'x');  // about as long as a RunSpec
  return row;
}

db::RunRow Run(int64_t id, int64_t study, int64_t cell, int repeat) {
  db::RunRow row;
  row.id = id;
  row.study_id = study;
  row.cell_id = cell;
  row.repeat = repeat;
  row.position = static_cast<int>(id % 1'000'000);
  return row;
}

db::AttemptRow Attempt(int64_t id, int64_t run) {
  db::AttemptRow row;
  row.id = id;
  row.run_id = run;
  row.number = 1;
  char token[40];  // as random as a UUID to the index
  std::snprintf(token, sizeof(token), "%016llx-attempt",
                static_cast<unsigned long long>(id) * 0x9e3779b97f4a7c15ULL);
  row.token = token;
  row.directory = "/scratch/runs/1/1/" + row.token;
  row.nodes = "node-17";
  return row;
}

db::RunSummary Summary(int64_t run, int64_t attempt) {
  db::RunSummary row;
  row.run_id = run;
  row.attempt_id = attempt;
  row.throughput = 1000.0 + static_cast<double>(run * 7919 % 100);
  row.throughput_mean = row.throughput;
  row.epoch_seconds = 50;
  row.step_seconds = 0.1;
  row.comm_share = 0.1;
  row.peak_memory = 1e9;
  row.accuracy = 0.9;
  row.train_loss = 0.3;
  row.steps = 1000;
  row.fingerprint = "5f2c0b7e9a4d1c83";
  for (int k = 0; k < kKeys; ++k) row.metrics["run/metric_" + std::to_string(k)] = 1.5 * k;
  return row;
}

// Part number `part` of a rank's event file: `lines` lines with kKeys values each.
db::StreamAppend Part(int64_t attempt, int rank, int64_t part, int64_t lines) {
  db::StreamAppend append;
  append.attempt_id = attempt;
  append.rank = rank;
  append.begin_line = part * lines;
  append.end_line = append.begin_line + lines;
  append.begin_position = append.begin_line * 200;
  append.end_position = append.end_line * 200;
  for (int k = 0; k < kKeys; ++k) {
    db::PointColumn& column = append.columns.emplace_back();
    column.key = "step/metric_" + std::to_string(k);
    for (int64_t line = append.begin_line; line < append.end_line; ++line) {
      column.line.push_back(line);
      column.step.push_back(line);
      column.time.push_back(1795000000.0 + 0.031 * static_cast<double>(line));
      column.value.push_back(std::sin(0.001 * static_cast<double>(line * (k + 1))));
    }
  }
  return append;
}

// Commits of `points` points each, of 4 ranks in turn.
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

// As anybody would who writes bulk inserts with care: one transaction a batch, a prepared statement,
// clustered rows.
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
      if (raw->wal_pages() > 1000) {  // SQLite's own default
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
                           Blob{column.line.data(), 8 * db::StoredInts(column.line.data(), count)},
                           Blob{column.step.data(), 8 * db::StoredInts(column.step.data(), count)},
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
Figure Alone(std::string name, double value, std::string unit) {
  return {std::move(name), value, std::move(unit), "", 0, 0};
}

void BenchIngest(const BenchOptions& options, std::vector<Figure>& figures) {
  for (const int64_t points : {1'000, 10'000, 100'000}) {
    const double wanted = points == 1'000 ? 2e5 : 1e6;
    const auto batches = PointBatches(points, std::max(points, static_cast<int64_t>(wanted * options.scale)));
    const double store = StorePointsPerSecond(options, batches);
    const std::string suffix = "_" + std::to_string(points);
    figures.push_back(Compared("ingest/points" + suffix, store, "points/s", "SQLite, a row a point",
                               RawRowsPerSecond(options, batches)));
    figures.push_back(Compared("ingest/chunks" + suffix, store, "points/s", "SQLite, the same chunks",
                               RawChunksPerSecond(options, batches)));
  }
}

void BenchSubmit(const BenchOptions& options, std::vector<Figure>& figures) {
  const Place place(options, "submit");
  std::unique_ptr<Store> store = place.Open();
  int64_t study = 0, cell = 0, run = 0, attempt = 0;
  figures.push_back(Alone("submit/study",
                          MedianMilliseconds(5,
                                             [&] {
                                               WriteBatch batch;
                                               batch.studies = {Study(++study)};
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
        batch.cells.push_back(Cell(++cell, study, 1));
        batch.runs.push_back(Run(++run, study, cell, 0));
      }
      Check(store->Commit(batch));
    }
  });
  figures.push_back(Alone("submit/single", singles / seconds, "studies/s"));

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
  figures.push_back(Alone("complete/runs", singles / seconds, "runs/s"));
}

// A million runs with results: studies of 1,000 runs (10 cells of 100 repeats), one of 100,000 (1,000 cells)
// among them.
void BenchCurve(const BenchOptions& options, std::vector<Figure>& figures) {
  const Place place(options, "curve");
  std::unique_ptr<Store> store = place.Open();
  const int64_t total = std::max<int64_t>(200'000, static_cast<int64_t>(1e6 * options.scale));
  int64_t study = 0, cell = 0, run = 0, small = 0, large = 0;
  while (run < total) {
    ++study;
    const bool is_large = large == 0 && run >= total / 2;
    (is_large ? large : small) = study;
    const int cells = is_large ? 1000 : 10;
    WriteBatch batch;
    batch.studies = {Study(study)};
    for (int c = 0; c < cells; ++c) {
      batch.cells.push_back(Cell(++cell, study, 1 << c % 10, "engine/" + std::to_string(c / 10)));
      for (int r = 0; r < 100; ++r) {
        batch.runs.push_back(Run(++run, study, cell, r));
        batch.runs.back().state = db::RunState::kSucceeded;
        batch.attempts.push_back(Attempt(run, run));
        batch.summaries.push_back(Summary(run, run));
      }
    }
    Check(store->Commit(batch));
  }
  small /= 2;  // one from the middle
  const auto curve_of = [&](int64_t id) {
    auto cells = store->ListCells(id);
    auto rows = store->ListCurveRows(id);
    Check(cells.status());
    Check(rows.status());
    if (server::MakeCurve({}, *cells, *rows).series_size() == 0) Check(absl::InternalError("empty curve"));
  };
  figures.push_back(Alone("curve/study_1000", MedianMilliseconds(21, [&] { curve_of(small); }), "ms"));
  figures.push_back(Alone("curve/study_100000", MedianMilliseconds(7, [&] { curve_of(large); }), "ms"));
  figures.push_back(Alone("curve/study_100000_rows",
                          MedianMilliseconds(7, [&] { Check(store->ListCurveRows(large).status()); }), "ms"));
}

void BenchAnalysis(std::vector<Figure>& figures) {
  std::vector<db::CellRow> cells;
  std::vector<db::CurveRow> rows;
  for (int c = 0; c < 100; ++c) {
    cells.push_back(Cell(c + 1, 1, 1 << c % 10, "engine/" + std::to_string(c / 10)));
    for (int r = 0; r < 100; ++r) {
      db::CurveRow& row = rows.emplace_back();
      row.cell_id = c + 1;
      row.repeat = r;
      row.state = db::RunState::kSucceeded;
      row.throughput = 100.0 * cells.back().ranks * (1 + 0.05 * std::sin(r * 7.0 + c));
      row.epoch_seconds = 10;
      row.accuracy = 0.9;
      row.fingerprint = "5f2c0b7e9a4d1c83";
    }
  }
  figures.push_back(
      Alone("analysis/curve", MedianMilliseconds(21, [&] { server::MakeCurve({}, cells, rows); }), "ms"));
}

void BenchPoints(const BenchOptions& options, std::vector<Figure>& figures) {
  const Place place(options, "points");
  std::unique_ptr<Store> store = place.Open();
  WriteBatch batch;
  batch.studies = {Study(1)};
  batch.cells = {Cell(1, 1, 1)};
  batch.runs = {Run(1, 1, 1, 0)};
  batch.attempts = {Attempt(1, 1)};
  Check(store->Commit(batch));
  // In parts of 200 lines, as they come from a rank that reports every few seconds.
  const int64_t parts = std::max<int64_t>(10, static_cast<int64_t>(5000 * options.scale));
  for (int64_t part = 0; part < parts; ++part) {
    WriteBatch more;
    more.appends = {Part(1, 0, part, 200)};
    more.appends[0].columns.resize(2);
    Check(store->Commit(more));
  }
  figures.push_back(
      Alone("points/downsampled",
            MedianMilliseconds(21,
                               [&] {
                                 Check(store->ReadPoints({1, "step/metric_1", 0}, [](db::Series series) {
                                   const std::vector<double> x(series.step.begin(), series.step.end());
                                   if (server::Downsample(x, series.value, 2000).size() != 2000)
                                     Check(absl::InternalError("not downsampled"));
                                 }));
                               }),
            "ms"));
}

}  // namespace

std::vector<Figure> RunQueryBench(const BenchOptions& options) {
  std::vector<Figure> figures;
  BenchIngest(options, figures);
  BenchSubmit(options, figures);
  BenchAnalysis(figures);
  BenchPoints(options, figures);
  BenchCurve(options, figures);
  return figures;
}

}  // namespace scalelab::bench
