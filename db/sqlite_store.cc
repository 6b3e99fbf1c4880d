#include "db/sqlite_store.h"

#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "db/access/access.h"
#include "db/curve_rows.h"
#include "db/migrations.h"
#include "db/reads.h"
#include "db/sqlite/filesystem.h"
#include "db/sqlite/identity.h"
#include "db/sqlite/phase_fair_lock.h"
#include "db/writer.h"
#include "files/durable_file.h"
#include "files/lock_file.h"
#include "planted/bug.h"

namespace scalelab::db {
namespace {

constexpr int kBusyTimeoutMs = 10'000;
// With a rollback journal, a commit waits until a backup has copied the whole database. The lock file excludes other
// writers, so only readers in other processes can make a commit wait.
constexpr int kCommitTimeoutMs = 3'600'000;
constexpr size_t kMostRowsKept = 100'000;  // of curves: up to 30 MB

// Takes the lock that keeps a second daemon from opening the database. It is the lock of a separate file,
// because closing another descriptor of the database file would drop SQLite's own locks.
absl::StatusOr<LockFile> TakeLock(const std::string& database) {
  const std::string path = database + ".lock";
  absl::StatusOr<std::optional<LockFile>> lock = LockFile::Take(path);
  if (!lock.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        lock.status().message(), "; check that its folder exists and that this user may write there"));
  }
  if (!lock->has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(database, " is in use by another scalelabd (", path,
                     " is locked); stop that one, or name another data folder"));
  }
  return **std::move(lock);
}

// A pool of read-only connections. Borrow blocks until one is free.
class Readers {
 public:
  class Lease {
   public:
    Lease(Readers& readers, std::unique_ptr<Database> db) ABSL_NO_THREAD_SAFETY_ANALYSIS
        : readers_(readers),
          db_(std::move(db)) {
      if (readers_.turns_ != nullptr) readers_.turns_->lock_shared();
    }
    ~Lease() ABSL_NO_THREAD_SAFETY_ANALYSIS {  // without `turns` there is no lock
      if (readers_.turns_ != nullptr) readers_.turns_->unlock_shared();
      readers_.Add(std::move(db_));
    }
    Database& operator*() { return *db_; }

   private:
    Readers& readers_;
    std::unique_ptr<Database> db_;
  };

  // `turns` excludes readers during a commit; null lets readers and the writer run in parallel.
  explicit Readers(PhaseFairLock* turns) : turns_(turns) {}

  void Add(std::unique_ptr<Database> db) {
    absl::MutexLock lock(&mutex_);
    free_.push_back(std::move(db));
  }
  Lease Borrow() {
    absl::ReleasableMutexLock lock(&mutex_, absl::Condition(this, &Readers::HasFree));
    // Take the connection that was used last, because its cache has the newest pages.
    std::unique_ptr<Database> db = std::move(free_.back());
    free_.pop_back();
    lock.Release();
    return Lease(*this, std::move(db));
  }

 private:
  bool HasFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !free_.empty(); }

  PhaseFairLock* const turns_;  // may be null
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Database>> free_ ABSL_GUARDED_BY(mutex_);
};

class SqliteStore : public Store {
 public:
  SqliteStore(LockFile lock, std::unique_ptr<Database> writer, const SqliteOptions& options)
      : lock_(std::move(lock)),
        curve_rows_(static_cast<size_t>(options.fewest_rows_kept), kMostRowsKept),
        writer_(std::move(writer), options.checkpoint_pages,
                [this](std::span<const int64_t> runs) { curve_rows_.Changed(runs); }),
        turns_(options.rollback_journal ? std::make_unique<PhaseFairLock>() : nullptr),
        readers_(turns_.get()) {}
  Readers& readers() { return readers_; }

  absl::Status Commit(const WriteBatch& batch) override {
    if (turns_ == nullptr) return writer_.Commit(batch);
    std::lock_guard turn(*turns_);
    return writer_.Commit(batch);
  }
  absl::StatusOr<bool> Maintain() override {
    curve_rows_.DropUnused(absl::Now());
    if (turns_ == nullptr) return writer_.Maintain();
    std::lock_guard turn(*turns_);
    return writer_.Maintain();
  }
  absl::StatusOr<int64_t> PutToken(const TokenRow& token) override {
    absl::StatusOr<int64_t> id = 0;
    const absl::Status status = Write([&](Database& db) {
      id = db::PutToken(db, token);
      return id.status();
    });
    if (!status.ok()) return status;
    return id;
  }
  absl::StatusOr<std::vector<TokenRow>> ListTokens() override {
    return Read([](Database& db) { return db::ListTokens(db); });
  }
  absl::Status AppendAudit(const std::vector<AuditRow>& rows) override {
    return Write([&](Database& db) { return db::AppendAudit(db, rows, kAuditChanges, kAuditRefusals); });
  }
  absl::StatusOr<std::vector<AuditRow>> ListAudit(const AuditFilter& filter) override {
    return Read([&](Database& db) { return db::ListAudit(db, filter); });
  }
  absl::Status ReadRows(const std::function<absl::Status(Database&)>& read) override { return Read(read); }
  absl::Status WriteRows(const std::function<absl::Status(Database&)>& write) override {
    if (turns_ == nullptr) return writer_.WriteRows(write);
    std::lock_guard turn(*turns_);
    return writer_.WriteRows(write);
  }
  void KeepInvisible(int64_t study_id) override { writer_.KeepInvisible(study_id); }
  void StopKeeping(int64_t study_id) override { writer_.StopKeeping(study_id); }
  absl::StatusOr<Snapshot> Load() override {
    return Read([&](Database& db) { return db::Load(db); });
  }
  absl::StatusOr<Snapshot> LoadStudy(int64_t id) override {
    return Read([&](Database& db) { return db::LoadStudy(db, id); });
  }
  absl::StatusOr<ServiceState> LoadServiceState() override {
    return Read([&](Database& db) { return db::LoadServiceState(db); });
  }
  absl::StatusOr<StudyRow> GetStudy(int64_t id) override {
    return Read([&](Database& db) { return db::GetStudy(db, id); });
  }
  absl::StatusOr<StudyRow> GetStudyHead(int64_t id) override {
    return Read([&](Database& db) { return db::GetStudyHead(db, id); });
  }
  absl::StatusOr<StudyRow> FindStudy(const std::string& name, const Viewer& viewer) override {
    return Read([&](Database& db) { return db::FindStudy(db, name, viewer); });
  }
  absl::StatusOr<StudyRow> FindRequest(const std::string& owner, const std::string& request_id) override {
    return Read([&](Database& db) { return db::FindRequest(db, owner, request_id); });
  }
  absl::StatusOr<std::vector<StudyRow>> ListStudies(int64_t before, int limit,
                                                    const Viewer& viewer) override {
    return Read([&](Database& db) { return db::ListStudies(db, before, limit, viewer); });
  }
  absl::StatusOr<std::vector<std::vector<int64_t>>> CountRuns(
      const std::vector<int64_t>& study_ids) override {
    return Read([&](Database& db) { return db::CountRuns(db, study_ids); });
  }
  absl::StatusOr<std::vector<CellRow>> ListCells(int64_t study_id) override {
    return Read([&](Database& db) { return db::ListCells(db, study_id); });
  }
  absl::StatusOr<std::vector<CellRow>> GetCells(const std::vector<int64_t>& ids) override {
    return Read([&](Database& db) { return db::GetCells(db, ids); });
  }
  absl::StatusOr<std::vector<CellValueRow>> ListCellValues(int64_t study_id) override {
    return Read([&](Database& db) { return db::ListCellValues(db, study_id); });
  }
  absl::StatusOr<std::vector<CellValueRow>> GetCellValues(int64_t study_id,
                                                          const std::vector<int>& numbers) override {
    return Read([&](Database& db) { return db::GetCellValues(db, study_id, numbers); });
  }
  absl::StatusOr<RunRow> GetRun(int64_t id) override {
    return Read([&](Database& db) { return db::GetRun(db, id); });
  }
  absl::StatusOr<std::vector<RunRow>> ListRuns(const RunFilter& filter) override {
    return Read([&](Database& db) { return db::ListRuns(db, filter); });
  }
  absl::StatusOr<std::string> GetProvenance(int64_t attempt_id) override {
    return Read([&](Database& db) { return db::GetProvenance(db, attempt_id); });
  }
  absl::StatusOr<std::vector<AttemptRow>> ListAttempts(int64_t run_id) override {
    return Read([&](Database& db) { return db::ListAttempts(db, run_id); });
  }
  absl::StatusOr<AllocationRow> GetAllocation(int64_t id) override {
    return Read([&](Database& db) { return db::GetAllocation(db, id); });
  }
  absl::StatusOr<std::vector<StreamRow>> ListStreams(int64_t attempt_id) override {
    return Read([&](Database& db) { return db::ListStreams(db, attempt_id); });
  }
  absl::StatusOr<RunSummary> GetSummary(int64_t run_id) override {
    return Read([&](Database& db) { return db::GetSummary(db, run_id); });
  }
  absl::StatusOr<std::vector<RunSummary>> ListSummaries(int64_t first_run_id, int64_t last_run_id) override {
    return Read([&](Database& db) { return db::ListSummaries(db, first_run_id, last_run_id); });
  }
  absl::StatusOr<SharedCurveRows> ListCurveRows(int64_t study_id) override {
    return curve_rows_.List(study_id,
                            [&](absl::FunctionRef<absl::Status(Database&)> read) { return Read(read); });
  }
  absl::StatusOr<std::vector<RunTimes>> ListRunTimes(int64_t study_id) override {
    return Read([&](Database& db) { return db::ListRunTimes(db, study_id); });
  }
  absl::StatusOr<std::vector<AttemptTime>> ListAttemptTimes(int64_t study_id,
                                                            const std::vector<CurveRow>& rows) override {
    return Read([&](Database& db) { return db::ListAttemptTimes(db, study_id, rows); });
  }
  absl::Status ReadPoints(const PointFilter& filter, const std::function<void(Series)>& take) override {
    SeriesName after;
    for (bool more = true; more;) {
      absl::StatusOr<SeriesList> list =
          Read([&](Database& db) { return ListSeries(db, filter, after, kSeriesPerPage); });
      if (!list.ok()) return list.status();
      more = list->ids.size() == kSeriesPerPage;
      if (more) after = {list->series.back().key, list->series.back().rank};
      for (size_t i = 0; i < list->ids.size(); ++i) {
        // Use one transaction per series, and none during `take`: a slow caller must not keep the WAL
        // from being checkpointed.
        Series& series = list->series[i];
        const absl::Status status = Read([&](Database& db) {
          return ReadSeries(db, filter.attempt_id, list->ids[i], filter.first, series);
        });
        if (!status.ok()) return status;
        if (!series.value.empty()) take(std::move(series));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Write(absl::FunctionRef<absl::Status(Database&)> write) {
    if (turns_ == nullptr) return writer_.Run(write);
    std::lock_guard turn(*turns_);
    return writer_.Run(write);
  }
  static const absl::Status& StatusIn(const absl::Status& status) { return status; }
  template <class T>
  static const absl::Status& StatusIn(const absl::StatusOr<T>& result) {
    return result.status();
  }
  // Returns `read` of a reader's connection. After an I/O error in a commit with a rollback journal, first
  // rolls back that commit.
  template <class F>
  auto Read(const F& read) -> decltype(read(std::declval<Database&>())) {
    auto result = read(*readers_.Borrow());
    if (!NeedsRollback(StatusIn(result)) || turns_ == nullptr) return result;
    {
      std::lock_guard turn(*turns_);
      if (absl::Status status = writer_.RollBack(); !status.ok()) return status;
    }
    return read(*readers_.Borrow());
  }

  // Members are destroyed in reverse order. The readers therefore close first. Closing the writer checkpoints
  // and removes the WAL.
  LockFile lock_;
  CurveRowCache curve_rows_;
  Writer writer_;
  // With a rollback journal, no connection can read during a commit. SQLite waits for a lock by polling
  // with sleeps. A busy writer would begin its next commit during each sleep, and the readers would time
  // out after seconds.
  std::unique_ptr<PhaseFairLock> turns_;  // null with a WAL
  Readers readers_;
};

// How the connections are configured:
// - page_size 4096: a small commit writes each page that it changes in full, so 8,192 would double its bytes.
//   Chunks of points are larger than either and are in overflow pages.
// - auto_vacuum incremental: Maintain gives free pages back. It has to be set before the first table exists.
// - synchronous EXTRA: with a rollback journal, FULL does not sync the directory after the journal is deleted, so that a
//   power cut could bring the journal back and undo an acknowledged commit. With a WAL it equals FULL.
// - secure_delete off (Debian turns it on): deleted bytes need not be overwritten.
// - wal_autocheckpoint is off on every connection (through the hook in Database); the writer checkpoints.
// - cache_size: 16 MiB for the writer keeps the inner pages and the last pages of all tables; 2 MiB for each
//   reader, because readers mostly scan.
// - no mmap: an I/O error would be a SIGBUS in the daemon instead of a status, and mapped pages would count
//   as its memory.
absl::Status SetUpWriter(Database& db, bool rollback_journal) {
  const std::string mode = rollback_journal ? "delete" : "wal";
  absl::StatusOr<std::string> now = db.QueryText("PRAGMA journal_mode=" + mode);
  if (!now.ok()) return now.status();
  if (*now != mode) {
    return absl::FailedPreconditionError(
        absl::StrCat(db.path(), " cannot use journal mode ", mode, " (stays at ", *now,
                     "); close other programs that use it, or move it to a local disk"));
  }
  db.set_uses_wal(!rollback_journal);
  const char* synchronous = "EXTRA";
  if (Planted(Bug::kCommitNotSynced)) synchronous = "OFF";
  if (Planted(Bug::kDirectoryNotSynced)) synchronous = "FULL";
  return db.Execute(
      absl::StrCat("PRAGMA synchronous=", synchronous,
                   "; PRAGMA foreign_keys=ON; PRAGMA secure_delete=OFF; PRAGMA cache_size=-16384;"
                   "PRAGMA journal_size_limit=67108864; PRAGMA temp_store=MEMORY"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const SqliteOptions& options) {
  if (!options.rollback_journal) {
    if (absl::Status status = CheckLocalFilesystem(options.path); !status.ok()) return status;
  }
  absl::StatusOr<LockFile> lock = TakeLock(options.path);
  if (!lock.ok()) return lock.status();
  FileSystem& files = options.files == nullptr ? SystemFiles() : *options.files;
  if (absl::Status status = CheckDatabaseExists(options.path, files); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<Database>> writer =
      Database::Open(options.path, Database::Mode::kReadWrite, kBusyTimeoutMs);
  if (!writer.ok()) return writer.status();
  // Migrate before SetUpWriter, so that a file of another program is rejected unchanged.
  absl::Status status = (*writer)->Execute(
      "PRAGMA page_size=4096; PRAGMA auto_vacuum=INCREMENTAL; PRAGMA synchronous=EXTRA; PRAGMA "
      "foreign_keys=ON");
  if (status.ok()) status = Migrate(**writer);
  if (status.ok()) status = SetUpWriter(**writer, options.rollback_journal);
  if (status.ok()) status = CheckIdentity(**writer, files);
  if (!status.ok()) return status;
  if (options.rollback_journal) sqlite3_busy_timeout((*writer)->handle(), kCommitTimeoutMs);

  auto store = std::make_unique<SqliteStore>(std::move(*lock), std::move(*writer), options);
  for (int i = 0; i < std::max(options.readers, 1); ++i) {
    absl::StatusOr<std::unique_ptr<Database>> reader =
        Database::Open(options.path, Database::Mode::kReadOnly, kBusyTimeoutMs);
    if (!reader.ok()) return reader.status();
    status = (*reader)->Execute("PRAGMA query_only=ON; PRAGMA cache_size=-2048; PRAGMA temp_store=MEMORY");
    if (!status.ok()) return status;
    store->readers().Add(std::move(*reader));
  }
  return store;
}

}  // namespace scalelab::db
