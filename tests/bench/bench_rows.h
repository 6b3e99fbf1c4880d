// Makes rows like those of the service, and a folder to store them in. The database benchmarks share them.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "db/sqlite_store.h"
#include "tests/bench/figure.h"

namespace scalelab::bench {

inline constexpr int kKeys = 10;  // number of metrics per step

// Ends the program with a message unless `status` is OK; a benchmark has no recovery.
void Check(const absl::Status& status);
double Seconds(const std::function<void()>& work);
double MedianMilliseconds(int times, const std::function<void()>& work);

// A folder for one measurement. Removed by the destructor.
class Place {
 public:
  Place(const BenchOptions& options, const std::string& name) : path_(options.directory + "/bench-" + name) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Place() { std::filesystem::remove_all(path_); }
  std::string file() const { return path_ + "/scalelab.db"; }
  std::unique_ptr<db::Store> Open() const {
    db::SqliteOptions options;
    options.path = file();
    auto store = db::OpenSqliteStore(options);
    Check(store.status());
    return std::move(*store);
  }

 private:
  std::string path_;
};

db::StudyRow Study(int64_t id);
// Returns the parameters that a study's cells have in common.
db::CellValueRow Common(int64_t study);
// Returns all values of a study's cells that Cell uses.
std::vector<db::CellValueRow> CellValues(int64_t study);
// `engine` is "native/ddp" or "engine/N" with N below 100, `ranks` a power of 2 up to 512.
db::CellRow Cell(int64_t id, int64_t study, int ranks, const std::string& engine = "native/ddp");
db::RunRow Run(int64_t id, int64_t study, int64_t cell, int repeat);
db::AttemptRow Attempt(int64_t id, int64_t run);
db::RunSummary Summary(int64_t run, int64_t attempt);
// Returns part `part` of a rank's event file: `lines` lines with kKeys values each.
db::StreamAppend Part(int64_t attempt, int rank, int64_t part, int64_t lines);

}  // namespace scalelab::bench
