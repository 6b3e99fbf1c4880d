#include "db/writer.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "db/columns.h"
#include "db/deletion.h"
#include "db/sqlite/return_if_error.h"
#include "db/stream.h"

namespace scalelab::db {
namespace {

// Number of free pages, 16 MiB, that the file keeps for the next commits.
constexpr int64_t kFreePagesKept = 4096;

// Rows with larger ids than `last_id` are new.
template <class Row>
absl::Status PutAll(Database& db, const std::vector<Row>& rows, int64_t last_id) {
  for (const Row& row : rows) {
    SCALELAB_RETURN_IF_ERROR(Put(db, row, row.id <= last_id).status());
    last_id = std::max(last_id, row.id);
  }
  return absl::OkStatus();
}

template <class Row>
absl::Status PutAll(Database& db, const std::vector<Row>& rows) {
  for (const Row& row : rows) SCALELAB_RETURN_IF_ERROR(Put(db, row, true).status());
  return absl::OkStatus();
}

// Runs `update` or, if it changes no row, `insert`. See Put for the reason.
template <class... T>
absl::Status UpdateOrInsert(Database& db, const char* update, const char* insert, const T&... values) {
  {
    Statement statement(db, update);
    if (absl::Status status = statement.Run(values...); !status.ok() || statement.changes() > 0)
      return status;
  }
  return Statement(db, insert).Run(values...);
}

}  // namespace

Writer::Writer(std::unique_ptr<Database> db, int checkpoint_pages,
               std::function<void(std::span<const int64_t>)> runs_changed)
    : db_(std::move(db)),
      points_(*db_),
      checkpoint_pages_(checkpoint_pages),
      runs_changed_(std::move(runs_changed)) {
  db_->ReportChanges([this](absl::string_view table, int64_t id) {
    mutex_.AssertHeld();  // all statements run in InTransaction
    if ((table == "run" || table == "run_summary") && (changed_.empty() || changed_.back() != id))
      changed_.push_back(id);
  });
}

absl::Status Writer::Commit(const WriteBatch& batch) {
  absl::MutexLock lock(&mutex_);
  if (batch.empty()) return absl::OkStatus();
  maintenance_due_ = true;
  return InTransaction([&] {
    mutex_.AssertHeld();  // the thread safety analysis does not look through lambdas
    return Write(batch);
  });
}

absl::Status Writer::InTransaction(absl::FunctionRef<absl::Status()> write) {
  absl::Status status = CheckedTransaction(write);
  if (!changed_.empty()) runs_changed_(changed_);
  changed_.clear();
  return status;
}

absl::Status Writer::CheckedTransaction(absl::FunctionRef<absl::Status()> write) {
  // A commit into a file that has no name any more would be lost. The second check finds a file that was deleted
  // during the commit, which is then not acknowledged.
  absl::Status status = db_->CheckFile();
  if (status.ok()) {
    Transaction transaction(*db_, Transaction::Kind::kWrite);
    status = transaction.status();
    if (status.ok()) status = write();
    if (status.ok()) status = transaction.Commit();
  }
  if (status.ok()) status = db_->CheckFile();
  if (!status.ok()) {
    points_.Forget();
    counters_.clear();
    return status;
  }
  if (db_->wal_pages() >= checkpoint_pages_) Checkpoint();
  return absl::OkStatus();
}

absl::Status Writer::RollBack() {
  absl::MutexLock lock(&mutex_);
  // Any read makes SQLite roll back the interrupted commit.
  return db_->QueryInt("SELECT count(*) FROM meta").status();
}

absl::Status Writer::Run(absl::FunctionRef<absl::Status(Database&)> write) {
  absl::MutexLock lock(&mutex_);
  return InTransaction([&] {
    mutex_.AssertHeld();
    return write(*db_);
  });
}

absl::StatusOr<bool> Writer::Maintain() {
  absl::MutexLock lock(&mutex_);
  if (!maintenance_due_) return false;
  absl::StatusOr<bool> more = false;
  absl::Status status = InTransaction([&] {
    mutex_.AssertHeld();
    more = DeleteSome(*db_, kept_);
    if (more.ok() && !*more) more = RemovePointsSome(*db_);
    if (more.ok() && *more) points_.Forget();
    if (more.ok() && !*more) more = points_.MergeSome();
    if (more.ok() && !*more) more = GiveBackPages();
    return more.status();
  });
  if (!status.ok()) return status;
  maintenance_due_ = *more;
  return more;
}

absl::Status Writer::WriteRows(absl::FunctionRef<absl::Status(Database&)> write) {
  absl::MutexLock lock(&mutex_);
  maintenance_due_ = true;
  counters_.clear();  // `write` may raise them
  return InTransaction([&] {
    mutex_.AssertHeld();
    return write(*db_);
  });
}

void Writer::KeepInvisible(int64_t study_id) {
  absl::MutexLock lock(&mutex_);
  kept_.insert(study_id);
}

void Writer::StopKeeping(int64_t study_id) {
  absl::MutexLock lock(&mutex_);
  kept_.erase(study_id);
  maintenance_due_ = true;
}

absl::StatusOr<bool> Writer::GiveBackPages() {
  const absl::StatusOr<int64_t> free = db_->QueryInt("PRAGMA freelist_count");
  if (!free.ok()) return free.status();
  const absl::StatusOr<int64_t> pages = db_->QueryInt("PRAGMA page_count");
  if (!pages.ok()) return pages.status();
  if (*free <= std::max(kFreePagesKept, *pages / 4)) return false;
  const absl::StatusOr<int64_t> incremental = db_->QueryInt("PRAGMA auto_vacuum");
  if (!incremental.ok()) return incremental.status();
  if (*incremental != 2) return false;  // a database from before step 3 of the migrations
  SCALELAB_RETURN_IF_ERROR(Statement(*db_, "PRAGMA incremental_vacuum(512)").Run());
  return true;
}

void Writer::Checkpoint() {
  // PASSIVE does not wait for readers; the next checkpoint copies what this one could not. Failure only lets
  // the WAL grow.
  sqlite3_wal_checkpoint_v2(db_->handle(), nullptr, SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr);
  db_->reset_wal_pages();
}

absl::Status Writer::Write(const WriteBatch& batch) {
  SCALELAB_RETURN_IF_ERROR(ReadCounters());
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.studies, counters_["study"]));
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.study_files));
  for (const CellValueRow& value : batch.cell_values)
    SCALELAB_RETURN_IF_ERROR(Put(*db_, value, value.study_id <= counters_["study"]).status());
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.cells, counters_["cell"]));
  SCALELAB_RETURN_IF_ERROR(PutRuns(batch.runs));
  SCALELAB_RETURN_IF_ERROR(PutAllocations(batch.allocations));
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.attempts, counters_["attempt"]));
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.provenance));
  for (const StreamAppend& append : batch.appends) SCALELAB_RETURN_IF_ERROR(Append(append));
  SCALELAB_RETURN_IF_ERROR(EndAttempts(batch.attempts));
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.epochs));
  SCALELAB_RETURN_IF_ERROR(PutSummaries(batch.summaries));
  SCALELAB_RETURN_IF_ERROR(PutUsage(batch));
  if (batch.drain) SCALELAB_RETURN_IF_ERROR(Put(*db_, *batch.drain, true).status());
  for (const NoticeRow& notice : batch.notices) SCALELAB_RETURN_IF_ERROR(PutNotice(notice));
  SCALELAB_RETURN_IF_ERROR(DeleteStudies(batch.deleted_studies));
  return RaiseCounters(batch);
}

absl::Status Writer::PutAllocations(const std::vector<AllocationRow>& allocations) {
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, allocations));
  // The deletion of a study keeps its allocations that have not ended. Delete such an allocation
  // when it ends.
  for (const AllocationRow& row : allocations) {
    if (row.state != AllocationState::kEnded) continue;
    Statement drop(*db_,
                   "DELETE FROM allocation WHERE id = ? AND NOT EXISTS (SELECT 1 FROM study WHERE id = ?)");
    SCALELAB_RETURN_IF_ERROR(drop.Run(row.id, row.study_id));
  }
  return absl::OkStatus();
}

absl::Status Writer::PutUsage(const WriteBatch& batch) {
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.usage));
  if (batch.usage_hours.empty()) return absl::OkStatus();
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.usage_hours));
  int64_t newest = 0;
  for (const UsageHourRow& row : batch.usage_hours) newest = std::max(newest, row.hour);
  return Statement(*db_, "DELETE FROM usage_hour WHERE hour <= ?").Run(newest - kUsageHours);
}

absl::Status Writer::PutRuns(const std::vector<RunRow>& runs) {
  if (runs.empty()) return absl::OkStatus();
  // Changes of the numbers of runs, by study and state.
  std::map<std::pair<int64_t, RunState>, int64_t> changes;
  {
    int64_t last = counters_["run"];  // a run with a larger id is new
    Statement before(*db_, "SELECT study_id, state FROM run WHERE id = ?");
    for (const RunRow& run : runs) {
      const bool may_exist = run.id <= last;
      if (may_exist) {
        before.Bind(run.id);
        if (before.Step()) {
          int64_t study = 0;
          RunState state{};
          before.Read(study, state);
          --changes[{study, state}];
        }
        SCALELAB_RETURN_IF_ERROR(before.status());
        before.Reset();
      }
      last = std::max(last, run.id);
      SCALELAB_RETURN_IF_ERROR(Put(*db_, run, may_exist).status());
      ++changes[{run.study_id, run.state}];
    }
  }
  for (const auto& [place, change] : changes) {
    if (change == 0) continue;
    SCALELAB_RETURN_IF_ERROR(
        UpdateOrInsert(*db_, "UPDATE run_count SET runs = runs + ?3 WHERE study_id = ?1 AND state = ?2",
                       "INSERT INTO run_count (study_id, state, runs) VALUES (?1, ?2, ?3)", place.first,
                       place.second, change));
  }
  std::map<int64_t, std::pair<int64_t, int64_t>> ranges;  // by study: smallest and largest id
  for (const RunRow& run : runs) {
    auto [it, added] = ranges.try_emplace(run.study_id, run.id, run.id);
    it->second.first = std::min(it->second.first, run.id);
    it->second.second = std::max(it->second.second, run.id);
  }
  Statement widen(
      *db_,
      "UPDATE study SET first_run_id = iif(last_run_id < first_run_id, ?2, min(first_run_id, ?2)), "
      "last_run_id = max(last_run_id, ?3) WHERE id = ?1 AND (last_run_id < first_run_id OR "
      "first_run_id > ?2 OR last_run_id < ?3)");
  for (const auto& [study, range] : ranges) {
    SCALELAB_RETURN_IF_ERROR(widen.Run(study, range.first, range.second));
  }
  return absl::OkStatus();
}

absl::Status Writer::EndAttempts(const std::vector<AttemptRow>& attempts) {
  for (const AttemptRow& attempt : attempts) {
    if (IsFinal(attempt.state)) SCALELAB_RETURN_IF_ERROR(points_.AttemptEnded(attempt.id));
  }
  return absl::OkStatus();
}

absl::Status Writer::PutSummaries(const std::vector<RunSummary>& summaries) {
  for (const RunSummary& summary : summaries) {
    const absl::StatusOr<bool> inserted = Put(*db_, summary, true);
    if (!inserted.ok()) return inserted.status();
    // A run has a row in both tables, run_summary and run_metrics, or in none.
    Statement metrics(*db_, *inserted ? "INSERT INTO run_metrics (run_id, metrics) VALUES (?1, ?2)"
                                      : "UPDATE run_metrics SET metrics = ?2 WHERE run_id = ?1");
    SCALELAB_RETURN_IF_ERROR(metrics.Run(summary.run_id, summary.metrics));
    SCALELAB_RETURN_IF_ERROR(PutRunTimes(*db_, summary));
  }
  return absl::OkStatus();
}

absl::Status Writer::PutNotice(const NoticeRow& notice) {
  return Statement(*db_,
                   "INSERT INTO notice (key, study_id, channel, target, payload, state, attempts, error, "
                   "created, due, "
                   "ended) VALUES (?, ?, ?, ?, ?, 1, 0, '', ?, ?, 0) ON CONFLICT (key) DO NOTHING")
      .Run(notice.key, notice.study_id, notice.channel, notice.target, notice.payload, notice.created,
           notice.created);
}

absl::Status Writer::Append(const StreamAppend& append) {
  static const std::string find = SelectSql<StreamRow>("WHERE attempt_id = ? AND rank = ?");
  StreamRow stream;
  stream.attempt_id = append.attempt_id;
  stream.rank = append.rank;
  Statement select(*db_, find.c_str());
  select.Bind(append.attempt_id, append.rank);
  const bool exists = select.Step();
  if (exists) stream = ReadRow<StreamRow>(select);
  SCALELAB_RETURN_IF_ERROR(select.status());
  select.Reset();
  if (append.begin_position != stream.position) {
    return absl::FailedPreconditionError(
        absl::StrCat("Events of attempt ", append.attempt_id, " rank ", append.rank, " start at byte ",
                     append.begin_position, ", but ", stream.position, " is next; send from there"));
  }
  if (append.end_position < append.begin_position) {
    return absl::InvalidArgumentError(absl::StrCat("Events of attempt ", append.attempt_id, " rank ",
                                                   append.rank, " end at byte ", append.end_position,
                                                   " before they start"));
  }

  Apply(stream, append);
  SCALELAB_RETURN_IF_ERROR(Put(*db_, stream, exists).status());
  return points_.Append(append);
}

absl::Status Writer::DeleteStudies(const std::vector<int64_t>& ids) {
  if (ids.empty()) return absl::OkStatus();
  for (int64_t id : ids) SCALELAB_RETURN_IF_ERROR(MarkDeleted(*db_, id));
  // This commit deletes small studies completely. Maintain deletes the remaining rows of large ones.
  points_.Forget();
  return DeleteSome(*db_, kept_).status();
}

absl::Status Writer::ReadCounters() {
  if (!counters_.empty()) return absl::OkStatus();
  counters_ = {{"study", 0}, {"cell", 0}, {"run", 0}, {"attempt", 0}, {"allocation", 0}};
  Statement all(*db_, "SELECT name, value FROM counter");
  while (all.Step()) {
    std::string name;
    int64_t value = 0;
    all.Read(name, value);
    counters_[name] = value;
  }
  return all.status();
}

absl::Status Writer::RaiseCounters(const WriteBatch& batch) {
  const auto raise = [&](const char* name, const auto& rows) {
    mutex_.AssertHeld();  // the thread safety analysis does not look through lambdas
    int64_t& last = counters_[name];
    const int64_t before = last;
    for (const auto& row : rows) last = std::max(last, row.id);
    if (last == before) return absl::OkStatus();
    return UpdateOrInsert(*db_, "UPDATE counter SET value = ?2 WHERE name = ?1",
                          "INSERT INTO counter (name, value) VALUES (?1, ?2)", name, last);
  };
  SCALELAB_RETURN_IF_ERROR(raise("study", batch.studies));
  SCALELAB_RETURN_IF_ERROR(raise("cell", batch.cells));
  SCALELAB_RETURN_IF_ERROR(raise("run", batch.runs));
  SCALELAB_RETURN_IF_ERROR(raise("attempt", batch.attempts));
  return raise("allocation", batch.allocations);
}

}  // namespace scalelab::db
