// A final study with rows in every table of an archive, and helpers to archive and restore it.
#pragma once

#include <fcntl.h>
#include <openssl/sha.h>
#include <unistd.h>
#include <zstd.h>

#include <fstream>
#include <iterator>
#include <set>

#include "db/archive/archive.h"
#include "nlohmann/json.hpp"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {

inline std::string TestSeal(absl::string_view sha256) {
  return "seal of " + std::string(sha256.substr(0, 8));
}

// A file that is open for reading and writing.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : path_(path), fd_(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { close(fd_); }
  int fd() const { return fd_; }
  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  const std::string path_;
  const int fd_;
};

// Returns a study with `runs` runs whose ids begin at `first_id`. Every second run has two attempts.
inline WriteBatch AFinalStudy(int64_t id, int runs, int64_t first_id) {
  WriteBatch batch;
  StudyRow study = AStudy(id, "archived");
  study.request_id = "request-" + std::to_string(id);
  study.state = StudyState::kFailed;
  study.started = study.created + 1;
  study.finished = study.created + 1'000'000;
  study.runs = runs;
  study.is_private = true;
  batch.studies = {study};
  batch.study_files = {{id, "study: archived  # for the paper\n"}};
  batch.cell_values = {AValue(id, 0, "", R"({"ranks":1})"), AValue(id, 1, "model", "\"resnet20\"")};
  int64_t attempt_id = first_id;
  for (int i = 0; i < runs; ++i) {
    const int64_t run_id = first_id + i;
    batch.cells.push_back(ACell(run_id, id));
    batch.runs.push_back(ARun(run_id, id, run_id));
    RunRow& run = batch.runs.back();
    run.position = i;
    run.state = i % 2 == 0 ? RunState::kSucceeded : RunState::kFailed;
    run.attempts = 1 + i % 2;
    run.message = std::string("a message with a zero byte: \0.", 30);
    batch.allocations.push_back(AnAllocation(run_id, id));
    batch.allocations.back().run_id = i % 3 == 0 ? run_id : 0;
    batch.allocations.back().state = AllocationState::kEnded;
    for (int number = 1; number <= run.attempts; ++number, ++attempt_id) {
      batch.attempts.push_back(AnAttempt(attempt_id, run_id, number));
      AttemptRow& attempt = batch.attempts.back();
      attempt.allocation_id = run_id;
      attempt.state = i % 2 == 0 ? AttemptState::kSucceeded : AttemptState::kFailed;
      attempt.directory = "/runs/" + std::to_string(attempt_id);
      attempt.finished = study.finished;
      if (i % 2 == 0) attempt.exit_status = 0;
      if (number < run.attempts) attempt.throughput = 50.5 + i;
      batch.provenance.push_back({attempt_id, R"([{"cpus":8}])"});
      for (int rank = 0; rank < 2; ++rank) {
        batch.appends.push_back(AnAppend(attempt_id, rank, 0, 40));
        batch.appends.back().columns = {AColumn("loss", 0, {1, 0.5, std::nan(""), -3e300}),
                                        AColumn("time", 0, {4, 5, 6, 1.0 * i})};
      }
      batch.epochs.push_back({attempt_id, 0, 1, 17.5, {{"epoch/accuracy", 0.5}}});
    }
    if (i % 2 == 0) batch.summaries.push_back(ASummary(run_id, attempt_id - 1, 100 + i));
  }
  NoticeRow notice;
  notice.key = "studies/" + std::to_string(id) + "/end";
  notice.study_id = id;
  notice.channel = "webhook";
  notice.target = "https://example.org";
  notice.payload = "{}";
  batch.notices = {notice};
  return batch;
}

// Returns the first ids of a restore, all of them `first`.
inline FirstIds IdsFrom(int64_t first) {
  FirstIds ids;
  ids.fill(first);
  return ids;
}

// Restores a whole archive.
inline absl::StatusOr<int64_t> RestoreAll(Store& store, int fd, int64_t first_id) {
  const absl::StatusOr<ArchiveHead> head = CheckArchive(fd);
  if (!head.ok()) return head.status();
  Restore restore(store, fd, *head, IdsFrom(first_id));
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) more = restore.Step();
  if (!more.ok()) return more.status();
  return restore.study_id();
}

// Returns the rows of an archive as text, with ids that begin at 1, and without the values that
// a restore changes.
inline std::vector<std::string> Rows(int fd) {
  std::vector<std::string> rows;
  ArchiveReader reader(fd);
  EXPECT_TRUE(reader.CheckWhole().ok());
  EXPECT_TRUE(reader.Begin(NewestSchema()).ok());
  Renumbering renumbering(IdsFrom(1));
  ArchiveRow row;
  int64_t series = 0;
  for (absl::StatusOr<bool> more = reader.Next(row); more.ok() && *more; more = reader.Next(row)) {
    const ArchiveTable& table = ArchiveTables()[row.table];
    const int64_t id = row.values[0].integer;
    EXPECT_TRUE(renumbering.Apply(table, row).ok());
    if (std::string(table.name) == "series") {
      renumbering.SetSeries(id, ++series);
      row.values[0].integer = series;
    }
    std::string text = table.name;
    for (size_t i = 0; i < row.values.size(); ++i) {
      const Change change = table.columns[i].change;
      if (change == Change::kNull || change == Change::kEmpty || change == Change::kNoticeKey) continue;
      const Value& value = row.values[i];
      text +=
          " " + std::string(table.columns[i].name) + "=" + std::to_string(static_cast<int>(value.type)) + ":";
      if (value.type == Value::Type::kInteger) text += std::to_string(value.integer);
      if (value.type == Value::Type::kReal) text += std::to_string(value.real);
      text += value.bytes;
    }
    rows.push_back(std::move(text));
  }
  return rows;
}

// Appends a value in the format of archive_file.h.
inline void AppendValue(const Value& value, std::string& to) {
  const auto append = [&to](const auto& number) {
    to.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  to.push_back(static_cast<char>(value.type));
  if (value.type == Value::Type::kInteger) append(value.integer);
  if (value.type == Value::Type::kReal) append(value.real);
  if (value.type != Value::Type::kText && value.type != Value::Type::kBlob) return;
  append(static_cast<uint32_t>(value.bytes.size()));
  to += value.bytes;
}

// Returns the archive in `fd` as another schema would have written it: without the tables and columns ("table.column") in
// `absent`, and with the names in `more`, which have no values, at the end of the list of tables.
inline std::string ArchiveOfSchema(int schema, int fd, const std::set<std::string>& absent,
                                   const std::vector<std::string>& more = {}) {
  const auto present = [&](const ArchiveTable& table, const ArchiveColumn& column) {
    return !absent.contains(std::string(table.name) + "." + column.name);
  };
  nlohmann::ordered_json tables = nlohmann::ordered_json::array();
  std::vector<int> index;  // by index of ArchiveTables(); -1: absent
  for (const ArchiveTable& table : ArchiveTables()) {
    index.push_back(absent.contains(table.name) ? -1 : static_cast<int>(tables.size()));
    if (index.back() < 0) continue;
    auto& columns = tables.emplace_back(nlohmann::ordered_json{{"name", table.name}})["columns"];
    for (const ArchiveColumn& column : table.columns)
      if (present(table, column)) columns.push_back(column.name);
  }
  for (const std::string& name : more) tables.push_back({{"name", name}, {"columns", {"id"}}});
  const std::string header = nlohmann::ordered_json{{"schema", schema}, {"tables", tables}}.dump();
  const auto length = static_cast<uint32_t>(header.size());
  std::string content(reinterpret_cast<const char*>(&length), sizeof length);
  content += header;
  ArchiveReader reader(fd);
  EXPECT_TRUE(reader.CheckWhole().ok());
  EXPECT_TRUE(reader.Begin(NewestSchema()).ok());
  ArchiveRow row;
  for (absl::StatusOr<bool> next = reader.Next(row); next.ok() && *next; next = reader.Next(row)) {
    const ArchiveTable& table = ArchiveTables()[row.table];
    if (index[row.table] < 0) continue;
    content.push_back(static_cast<char>(index[row.table]));
    for (size_t i = 0; i < row.values.size(); ++i)
      if (present(table, table.columns[i])) AppendValue(row.values[i], content);
  }
  content.push_back('\xff');
  std::string frame(ZSTD_compressBound(content.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), content.data(), content.size(), 1));
  std::string bytes = "scalelab archive 1\n" + frame + std::string(64, ' ');
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return bytes + hash;
}

}  // namespace scalelab::db
