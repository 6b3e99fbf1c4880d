// Measures retention on a database of ten million points: the time, the size before and after, and reads and
// commits during the removal.
#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "server/retention/retention.h"
#include "tests/bench/bench_rows.h"
#include "tests/bench/store_bench.h"

namespace scalelab::bench {
namespace {

using db::Store;

constexpr int kRunsPerStudy = 100;
constexpr int64_t kLines = 1000;  // lines of a run; each has kKeys points
constexpr db::Micros kDay = 86'400'000'000;

// Commits studies of 100 runs with 10,000 points each; those with odd numbers ended long ago. Returns the number of points.
int64_t Fill(Store& store, int64_t points) {
  int64_t study = 0, run = 0, done = 0;
  while (done < points) {
    ++study;
    for (int i = 0; i < kRunsPerStudy; ++i) {
      ++run;
      db::WriteBatch batch;
      if (i == 0) {
        batch.studies = {Study(study)};
        batch.studies[0].state = db::StudyState::kSucceeded;
        batch.studies[0].finished = study % 2 == 1 ? kDay : 1000 * kDay;
        batch.cells = {Cell(study, study, 1)};
      }
      batch.runs = {Run(run, study, study, i)};
      batch.runs[0].state = db::RunState::kSucceeded;
      batch.attempts = {Attempt(run, run)};
      batch.attempts[0].state = db::AttemptState::kSucceeded;
      batch.attempts[0].finished = kDay;
      batch.appends = {Part(run, 0, 0, kLines)};
      Check(store.Commit(batch));
      done += kLines * kKeys;
    }
  }
  for (absl::StatusOr<bool> more = true; *more;) {
    more = store.Maintain();
    Check(more.status());
  }
  return done;
}

double Quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

// Calls `work` repeatedly, with pauses, until `over` is true. Returns the durations in milliseconds.
std::vector<double> Repeat(const std::atomic<bool>& over, const std::function<void()>& work) {
  std::vector<double> times;
  while (!over) {
    times.push_back(1000 * Seconds(work));
    absl::SleepFor(absl::Milliseconds(2));
  }
  return times;
}

}  // namespace

std::vector<Figure> RunPruneBench(const BenchOptions& options) {
  const Place place(options, "prune");
  std::unique_ptr<Store> store = place.Open();
  const int64_t points =
      Fill(*store, std::max<int64_t>(2'000'000, static_cast<int64_t>(1e7 * options.scale)));

  server::RetentionOptions retention_options;
  retention_options.rules.points = absl::Hours(24 * 365);
  retention_options.runs_dir = options.directory;
  retention_options.now = [] { return absl::FromUnixMicros(1001 * kDay); };
  server::Retention retention({retention_options.rules, retention_options.runs_dir, retention_options.now,
                               absl::InfiniteDuration(), absl::InfiniteDuration()},
                              *store);
  const auto never = [] { return false; };
  std::vector<Figure> figures;
  const double dry = Seconds([&] { Check(retention.Prune(/*dry_run=*/true, never).status()); });

  std::atomic<bool> over = false;
  std::vector<double> reads, commits;
  std::thread reader([&] {
    // A run of study 2, whose points are not removed.
    reads = Repeat(over, [&] {
      Check(store->ReadPoints({kRunsPerStudy + 1, "", 0}, [](const db::Series&) {}));
    });
  });
  std::thread committer([&] {
    int64_t part = 1;
    commits = Repeat(over, [&] {
      db::WriteBatch batch;
      batch.studies = {Study(1'000'000 + part++)};
      Check(store->Commit(batch));
    });
  });
  absl::StatusOr<v1::PruneResponse> pruned = absl::InternalError("");
  const double seconds = Seconds([&] { pruned = retention.Prune(/*dry_run=*/false, never); });
  over = true;
  reader.join();
  committer.join();
  Check(pruned.status());

  const auto megabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  figures.push_back({"prune/points_in_database", static_cast<double>(points), "points"});
  figures.push_back({"prune/points_removed", static_cast<double>(pruned->removed(0).points()), "points"});
  figures.push_back({"prune/dry_run", 1000 * dry, "ms"});
  figures.push_back({"prune/time", seconds, "s"});
  figures.push_back({"prune/size_after", megabytes(pruned->database_bytes_after()), "MB", "size before",
                     megabytes(pruned->database_bytes_before()),
                     static_cast<double>(pruned->database_bytes_after()) /
                         static_cast<double>(pruned->database_bytes_before())});
  figures.push_back({"prune/read_of_10000_points_p50", Quantile(reads, 0.5), "ms"});
  figures.push_back({"prune/read_of_10000_points_p99", Quantile(reads, 0.99), "ms", "target", 50,
                     Quantile(reads, 0.99) / 50});
  figures.push_back({"prune/commit_p50", Quantile(commits, 0.5), "ms"});
  figures.push_back(
      {"prune/commit_p99", Quantile(commits, 0.99), "ms", "target", 100, Quantile(commits, 0.99) / 100});
  return figures;
}

}  // namespace scalelab::bench
