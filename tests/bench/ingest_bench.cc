#include <sqlite3.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/service_bench.h"
#include "tests/bench/simulated_worker.h"

namespace scalelab::bench {
namespace {

constexpr int kWorkers = 4;
constexpr int kKeys = 8;
constexpr int kLines = 1250;  // per request: 10,000 points, about 330 KiB
constexpr int kRowsPerCommit = 10'000;

const char* Key(int k) {
  static const char* keys[kKeys] = {"step/total_s",    "step/data_s",      "step/forward_s",
                                    "step/backward_s", "step/optimizer_s", "step/comm_exposed_s",
                                    "comm/bytes",      "train/loss"};
  return keys[k];
}

v1::ReportEventsRequest Request(const std::string& token, int number) {
  v1::ReportEventsRequest request;
  v1::EventBatch& batch = *request.add_batches();
  batch.set_token(token);
  batch.set_begin_position(static_cast<int64_t>(number) * kLines * 200);
  batch.set_end_position(static_cast<int64_t>(number + 1) * kLines * 200);
  batch.set_begin_line(static_cast<int64_t>(number) * kLines);
  batch.set_end_line(static_cast<int64_t>(number + 1) * kLines);
  for (int k = 0; k < kKeys; ++k) {
    v1::PointColumn& column = *batch.add_columns();
    column.set_key(Key(k));
    for (int64_t line = batch.begin_line(); line < batch.end_line(); ++line) {
      column.add_line(line);
      column.add_step(line);
      column.add_time(1.7e9 + 0.01 * static_cast<double>(line));
      column.add_value(0.001 * static_cast<double>(line % 977) + k);
    }
  }
  return request;
}

// Writes the same rows in the same order and schema directly to SQLite: the maximum rate of durable SQLite.
double RawRowsPerSecond(const std::string& path, int requests) {
  sqlite3* db = nullptr;
  sqlite3_open(path.c_str(), &db);
  sqlite3_exec(
      db,
      "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
      "CREATE TABLE point(attempt_id INTEGER NOT NULL, key_id INTEGER NOT NULL, rank INTEGER NOT NULL,"
      " line INTEGER NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL, value REAL,"
      " PRIMARY KEY(attempt_id, key_id, rank, line)) STRICT, WITHOUT ROWID;",
      nullptr, nullptr, nullptr);
  sqlite3_stmt* insert = nullptr;
  sqlite3_prepare_v3(db, "INSERT INTO point VALUES(?,?,?,?,?,?,?)", -1, SQLITE_PREPARE_PERSISTENT, &insert,
                     nullptr);
  const absl::Time start = absl::Now();
  int64_t rows = 0;
  for (int r = 0; r < requests; ++r) {
    for (int w = 0; w < kWorkers; ++w) {
      for (int k = 0; k < kKeys; ++k) {
        for (int64_t line = static_cast<int64_t>(r) * kLines; line < static_cast<int64_t>(r + 1) * kLines;
             ++line) {
          if (rows % kRowsPerCommit == 0)
            sqlite3_exec(db, rows == 0 ? "BEGIN" : "COMMIT; BEGIN", nullptr, nullptr, nullptr);
          sqlite3_bind_int64(insert, 1, w);
          sqlite3_bind_int64(insert, 2, k);
          sqlite3_bind_int64(insert, 3, 0);
          sqlite3_bind_int64(insert, 4, line);
          sqlite3_bind_int64(insert, 5, line);
          sqlite3_bind_double(insert, 6, 1.7e9 + 0.01 * static_cast<double>(line));
          sqlite3_bind_double(insert, 7, 0.001 * static_cast<double>(line % 977) + k);
          sqlite3_step(insert);
          sqlite3_reset(insert);
          ++rows;
        }
      }
    }
  }
  sqlite3_exec(db, "COMMIT", nullptr, nullptr, nullptr);
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  sqlite3_finalize(insert);
  sqlite3_close(db);
  return static_cast<double>(rows) / seconds;
}

// Sends the requests of one worker one after another, as a worker does.
class IngestLoop {
 public:
  IngestLoop(SimulatedWorker& worker, const std::vector<v1::ReportEventsRequest>& requests,
             std::function<void(bool)> done)
      : worker_(worker), requests_(requests), done_(std::move(done)) {}
  void Next(bool ok = true) {
    if (!ok || at_ == requests_.size()) return done_(ok);
    worker_.ReportAsync(requests_[at_++], [this](bool accepted) { Next(accepted); });
  }

 private:
  SimulatedWorker& worker_;
  const std::vector<v1::ReportEventsRequest>& requests_;
  size_t at_ = 0;
  std::function<void(bool)> done_;
};

double IngestRowsPerSecond(const std::string& directory, int requests) {
  BenchServer server(directory, true);
  auto studies = v1::StudyService::NewStub(server.Connect());
  for (int w = 0; w < kWorkers; ++w) {
    v1::CreateStudyRequest request;
    *request.mutable_spec() = BenchStudy(1);
    v1::CreateStudyResponse response;
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    if (!studies->CreateStudy(&context, request, &response).ok()) return 0;
  }
  while (server.scheduler().jobs().size() < kWorkers) std::this_thread::yield();
  std::vector<std::unique_ptr<SimulatedWorker>> workers;
  std::vector<std::vector<v1::ReportEventsRequest>> prepared;
  for (const auto& [token, secret] : server.scheduler().jobs()) {
    workers.push_back(
        std::make_unique<SimulatedWorker>(server.Connect(), token, secret, static_cast<int>(workers.size())));
    const std::string attempt = workers.back()->Attach();
    auto& mine = prepared.emplace_back();
    for (int r = 0; r < requests; ++r) mine.push_back(Request(attempt, r));
  }
  std::mutex mutex;
  std::condition_variable changed;
  int working = kWorkers;
  bool failed = false;
  std::vector<std::unique_ptr<IngestLoop>> loops;
  for (int w = 0; w < kWorkers; ++w) {
    loops.push_back(std::make_unique<IngestLoop>(*workers[w], prepared[w], [&](bool ok) {
      std::lock_guard lock(mutex);
      failed = failed || !ok;
      --working;
      changed.notify_one();
    }));
  }
  const absl::Time start = absl::Now();
  for (auto& loop : loops) loop->Next();
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return working == 0; });
  const double rows = static_cast<double>(kWorkers) * requests * kKeys * kLines;
  return failed ? 0 : rows / absl::ToDoubleSeconds(absl::Now() - start);
}

}  // namespace

std::vector<Figure> RunIngestBench(const BenchOptions& options) {
  const int requests = std::max(2, static_cast<int>(50 * options.scale));  // 2 M points in total at scale 1
  const double raw = RawRowsPerSecond(options.directory + "/raw.db", requests);
  const double through = IngestRowsPerSecond(options.directory, requests);
  return {{"ingest/grpc_to_durable_commit", through, "points/s", "raw SQLite bulk insert of the same rows",
           raw, through / raw}};
}

}  // namespace scalelab::bench
