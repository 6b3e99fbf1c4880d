// Builders for studies, runs and points, and the list of Store implementations that the contract runs
// against. To add an implementation, add a row to Implementations().
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "db/sqlite_store.h"
#include "db/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::db {

struct Implementation {
  std::string name;
  // Opens the store in `directory`, or a new one. Called again to check what is durable.
  std::function<absl::StatusOr<std::unique_ptr<Store>>(const std::string& directory)> open;
};

// Names a parameter in a test's output.
inline void PrintTo(const Implementation& implementation, std::ostream* out) { *out << implementation.name; }

inline std::vector<Implementation> Implementations() {
  const auto sqlite = [](bool rollback_journal) {
    return [rollback_journal](const std::string& directory) {
      SqliteOptions options;
      options.path = directory + "/scalelab.db";
      options.rollback_journal = rollback_journal;
      // Keep the rows of all studies in memory, because the contract applies to them too.
      options.fewest_rows_kept = 1;
      return OpenSqliteStore(options);
    };
  };
  return {{"SqliteWal", sqlite(false)}, {"SqliteRollbackJournal", sqlite(true)}};
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() : TemporaryDirectory(std::filesystem::temp_directory_path()) {}
  explicit TemporaryDirectory(const std::filesystem::path& parent) {
    std::string pattern = (parent / "scalelab-store-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  // A folder for tests that open thousands of databases. It is in memory if the machine has such
  // a file system.
  static TemporaryDirectory InMemory() {
    return TemporaryDirectory(
        std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path());
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline StudyRow AStudy(int64_t id, const std::string& name = "resnet") {
  StudyRow row;
  row.id = id;
  row.name = name;
  row.owner = "ada";
  row.spec = R"({"study":"resnet"})";
  row.created = 1'795'000'000'000'000 + id;
  return row;
}

inline CellRow ACell(int64_t id, int64_t study_id, int ranks = 1) {
  CellRow row;
  row.id = id;
  row.study_id = study_id;
  row.position = static_cast<int>(id);
  row.engine = "native/ddp";
  row.model = "resnet20";
  row.precision = "fp32";
  row.backend = "auto";
  row.ranks = ranks;
  row.global_batch = 256;
  row.key = row.spec = "[1]";
  return row;
}

inline CellValueRow AValue(int64_t study_id, int number, const std::string& name, const std::string& value) {
  return {study_id, number, name, value};
}

inline RunRow ARun(int64_t id, int64_t study_id, int64_t cell_id, int repeat = 0) {
  RunRow row;
  row.id = id;
  row.study_id = study_id;
  row.cell_id = cell_id;
  row.repeat = repeat;
  row.position = static_cast<int>(id);
  return row;
}

inline AttemptRow AnAttempt(int64_t id, int64_t run_id, int number = 1) {
  AttemptRow row;
  row.id = id;
  row.run_id = run_id;
  row.number = number;
  row.token = "token-" + std::to_string(id);
  return row;
}

inline AllocationRow AnAllocation(int64_t id, int64_t study_id) {
  AllocationRow row;
  row.id = id;
  row.study_id = study_id;
  row.token = "allocation-" + std::to_string(id);
  row.nodes = 2;
  return row;
}

inline StreamAppend AnAppend(int64_t attempt_id, int rank, int64_t begin, int64_t end) {
  StreamAppend append;
  append.attempt_id = attempt_id;
  append.rank = rank;
  append.begin_position = begin;
  append.end_position = end;
  append.begin_line = begin / 10;  // lines have ten bytes
  append.end_line = end / 10;
  return append;
}

// Values of one metric in the lines from `first_line` on; step and time increase with the line.
inline PointColumn AColumn(const std::string& key, int64_t first_line, const std::vector<double>& values) {
  PointColumn column;
  column.key = key;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t line = first_line + static_cast<int64_t>(i);
    column.line.push_back(line);
    column.step.push_back(line * 2);
    column.time.push_back(1795000000.25 + static_cast<double>(line));
    column.value.push_back(values[i]);
  }
  return column;
}

inline RunSummary ASummary(int64_t run_id, int64_t attempt_id, double throughput) {
  RunSummary row;
  row.run_id = run_id;
  row.attempt_id = attempt_id;
  row.throughput = throughput;
  row.steps = 100;
  row.fingerprint = "a100";
  row.metrics = {{"run/throughput", throughput}};
  return row;
}

class StoreContract : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override { Reopen(); }
  void Reopen() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<Store>> store = GetParam().open(directory_.path());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = std::move(*store);
  }
  void Commit(const WriteBatch& batch) {
    const absl::Status status = store_->Commit(batch);
    ASSERT_TRUE(status.ok()) << status;
  }
  // Commits a study with one cell, one run and one attempt, all with id `id`.
  void CommitStudyWithAttempt(int64_t id) {
    WriteBatch batch;
    batch.studies = {AStudy(id)};
    batch.cells = {ACell(id, id)};
    batch.runs = {ARun(id, id, id)};
    batch.attempts = {AnAttempt(id, id)};
    Commit(batch);
  }
  std::vector<Series> Points(const PointFilter& filter) {
    std::vector<Series> all;
    const absl::Status status =
        store_->ReadPoints(filter, [&](Series series) { all.push_back(std::move(series)); });
    EXPECT_TRUE(status.ok()) << status;
    return all;
  }
  StreamRow Stream(int64_t attempt_id, int rank) {
    const std::vector<StreamRow> streams = store_->ListStreams(attempt_id).value();
    for (const StreamRow& row : streams) {
      if (row.rank == rank) return row;
    }
    return {};
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Store> store_;
};

}  // namespace scalelab::db
