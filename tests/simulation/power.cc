#include "tests/simulation/power.h"

#include <cstdint>
#include <fstream>
#include <limits>
#include <utility>

#include "db/sqlite/sqlite.h"

namespace scalelab::simulation {
namespace {

using powercut::Disk;
using powercut::DiskVfs;
using powercut::Image;
using powercut::PowerCuts;

// Appends the rows of a table to `text`.
absl::Status AppendTable(db::Database& db, const std::string& table, std::string& text) {
  const auto columns = db.QueryText(absl::StrCat(
      "SELECT group_concat('quote(\"' || name || '\")', ' || '','' || ') FROM pragma_table_info('", table,
      "')"));
  if (!columns.ok()) return columns.status();
  const auto rows = db.QueryText(absl::StrCat("SELECT group_concat(line, char(10)) FROM (SELECT ", *columns,
                                              " AS line FROM \"", table, "\" ORDER BY 1)"));
  if (!rows.ok()) return rows.status();
  absl::StrAppend(&text, table, "\n", *rows, "\n");
  return absl::OkStatus();
}

absl::Status AppendTables(db::Database& db, std::string& text) {
  const auto count = db.QueryInt("SELECT count(*) FROM sqlite_schema WHERE type = 'table'");
  if (!count.ok()) return count.status();
  for (int64_t i = 0; i < *count; ++i) {
    const auto table = db.QueryText(
        absl::StrCat("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name LIMIT 1 OFFSET ", i));
    if (!table.ok()) return table.status();
    if (absl::Status status = AppendTable(db, *table, text); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

Power::Power(World& world, std::string database)
    : world_(world), database_(std::move(database)), cuts_(std::make_unique<PowerCuts>()) {
  // The store checks that a non-empty file has this name; the simulated disk has the contents.
  std::ofstream(database_) << "placeholder";
  disk_ = std::make_unique<Disk>();
  disk_->set_recording(true);
  vfs_ = std::make_unique<DiskVfs>(*disk_);
}

void Power::Kill(const std::function<void()>& close) {
  // Closing a database runs a checkpoint and deletes files. A killed process does not do that, so make
  // these operations fail.
  disk_->set_fault({0, std::numeric_limits<int64_t>::max()});
  close();
  disk_->set_fault({});
  vfs_.reset();  // the locks and the shared memory are lost too
  if (left_) {
    cuts_ = std::make_unique<PowerCuts>(powercut::Flaws(), *left_);
    disk_ = std::make_unique<Disk>(*std::exchange(left_, std::nullopt));
    disk_->set_recording(true);
  }
  vfs_ = std::make_unique<DiskVfs>(*disk_);
}

void Power::Settle() {
  for (auto& operation : disk_->TakeLog()) cuts_->Apply(std::move(operation));
}

void Power::Cut() {
  Settle();
  std::mt19937_64 random(world_.random.Next());
  left_ = cuts_->Cut(random);
}

void Power::BeginCommit() {
  Settle();
  before_commit_ = disk_->Contents();
}

void Power::CutCommit(const db::WriteBatch& batch) {
  interrupted_ = {batch, std::move(before_commit_), disk_->Contents()};
  const powercut::Log log = disk_->TakeLog();
  const int64_t operations = world_.random.Between(0, static_cast<int64_t>(log.size()));
  for (int64_t i = 0; i < operations; ++i) cuts_->Apply(log[i]);
  Cut();
  world_.Trace("power: cut after ", operations, " of ", log.size(), " operations of a commit");
}

std::optional<db::WriteBatch> Power::TakeCommitted() {
  if (!interrupted_) return std::nullopt;
  InterruptedCommit commit = *std::exchange(interrupted_, std::nullopt);
  const std::string left = Dump(disk_->Contents());
  if (left == Dump(commit.after)) return std::move(commit.batch);
  if (left != Dump(commit.before))
    world_.Violation("after a power cut, a part of a commit is in the database");
  return std::nullopt;
}

std::string Power::Dump(const Image& image) {
  Disk disk(image);
  const DiskVfs vfs(disk);
  auto db = db::Database::Open(database_, db::Database::Mode::kReadWrite, 0);
  if (!db.ok()) return db.status().ToString();
  std::string text;
  const absl::Status status = AppendTables(**db, text);
  return status.ok() ? text : status.ToString();
}

}  // namespace scalelab::simulation
