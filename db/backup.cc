#include "db/backup.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "db/migrations.h"
#include "db/sqlite/sqlite.h"
#include "files/durable_file.h"

namespace scalelab::db {
namespace {

// With a rollback journal, the lock is free only between two commits. With a busy service on a slow disk,
// that happens rarely.
constexpr int kBackupTimeoutMs = 30'000;

// Waits a millisecond for a lock, up to the timeout. SQLite's own handler sleeps up to 100 ms between two tries, and a busy
// service leaves the lock free for less than a millisecond.
int WaitForLock(void*, int tries) {
  if (tries >= kBackupTimeoutMs) return 0;
  usleep(1000);
  return 1;
}

absl::Status CannotWrite(const std::string& path, int error) {
  const std::string sentence =
      absl::StrCat(path, " cannot be written (", std::strerror(error),
                   "); check that its folder exists, has space, and that this user may write there");
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(sentence)
                                            : absl::FailedPreconditionError(sentence);
}

// The incomplete copy. The destructor removes it and SQLite's files next to it, unless Finish has renamed it.
class PartFile {
 public:
  PartFile(FileSystem& files, const std::string& file) : files_(files), file_(file), path_(file + ".part") {}
  ~PartFile() {
    if (!made_) return;
    for (const char* suffix : {"", "-journal", "-wal", "-shm"}) files_.Remove(path_ + suffix);
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  const std::string& path() const { return path_; }

  // Creates the file with its final mode, so that no other user can ever read it. Call it before SQLite opens
  // the file: closing any descriptor of a file that SQLite has open would drop SQLite's locks.
  absl::Status Make() {
    if (files_.Exists(file_)) {
      return absl::AlreadyExistsError(
          absl::StrCat(file_, " exists, and a backup never overwrites a file; name another file"));
    }
    const int error = files_.Create(path_, "");
    if (error == EEXIST) {
      return absl::AlreadyExistsError(
          absl::StrCat(path_,
                       " exists: another backup is writing it, or one was interrupted; when none runs, "
                       "remove it and try again"));
    }
    if (error != 0) return CannotWrite(path_, error);
    made_ = true;
    return absl::OkStatus();
  }

  // Syncs the file, renames it to its final name and syncs the folder. SQLite must have closed the file. After an error the
  // file has neither name, because a copy whose name a power failure may remove is not a backup.
  absl::Status Finish() {
    const FileFailure failure = PublishFile(files_, path_, file_, /*replace=*/false);
    if (failure.error == 0 || failure.folder) made_ = false;
    if (failure.error == 0) return absl::OkStatus();
    return CannotWrite(file_, failure.error);
  }

 private:
  FileSystem& files_;
  const std::string file_, path_;
  bool made_ = false;
};

absl::Status Copy(Database& source, const std::string& part) {
  absl::StatusOr<std::unique_ptr<Database>> copy =
      Database::Open(part, Database::Mode::kReadWrite, kBackupTimeoutMs);
  if (!copy.ok()) return copy.status();
  // An incomplete copy is removed, so it needs no rollback; Finish syncs the complete copy.
  if (auto s = (*copy)->Execute("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF"); !s.ok()) return s;
  sqlite3_backup* backup = sqlite3_backup_init((*copy)->handle(), "main", source.handle(), "main");
  if (backup == nullptr) return (*copy)->LastError();
  // Copy all pages in one step. This uses one read transaction, so the copy is consistent, and no
  // commit restarts it.
  const int rc = sqlite3_backup_step(backup, -1);
  const int system_error = sqlite3_system_errno((*copy)->handle());
  sqlite3_backup_finish(backup);
  if (rc != SQLITE_DONE) {
    const int primary = rc & 0xff;
    const bool reading = primary == SQLITE_BUSY || primary == SQLITE_LOCKED || primary == SQLITE_CORRUPT ||
                         primary == SQLITE_NOTADB || rc == SQLITE_IOERR_READ || rc == SQLITE_IOERR_SHORT_READ;
    return StatusOf(rc, reading ? 0 : system_error, reading ? source.path() : part, sqlite3_errstr(rc));
  }
  // Leave WAL mode, so that the single file can be read in a read-only folder too.
  return (*copy)->QueryText("PRAGMA journal_mode=DELETE").status();
}

absl::Status Check(const std::string& part) {
  absl::StatusOr<std::unique_ptr<Database>> copy =
      Database::Open(part, Database::Mode::kReadOnly, kBackupTimeoutMs);
  if (!copy.ok()) return copy.status();
  const absl::StatusOr<std::string> found = (*copy)->QueryText("PRAGMA quick_check(1)");
  if (!found.ok() || *found == "ok") return found.status();
  return absl::DataLossError(*found);
}

}  // namespace

absl::Status BackupDatabase(const std::string& path, const std::string& file, FileSystem* file_system) {
  FileSystem& files = file_system == nullptr ? SystemFiles() : *file_system;
  if (!files.Exists(path)) {
    return absl::NotFoundError(
        absl::StrCat("There is no database ", path, "; name the folder of a service that has run"));
  }
  absl::StatusOr<std::unique_ptr<Database>> source =
      Database::Open(path, Database::Mode::kReadOnly, kBackupTimeoutMs);
  if (!source.ok()) return source.status();
  sqlite3_busy_handler((*source)->handle(), WaitForLock, nullptr);
  const absl::StatusOr<int64_t> application = (*source)->QueryInt("PRAGMA application_id");
  if (!application.ok()) return application.status();
  if (*application != kApplicationId) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a scalelab database; name the folder of a service that has run"));
  }
  PartFile part(files, file);
  if (auto s = part.Make(); !s.ok()) return s;
  absl::Status status = Copy(**source, part.path());
  if (status.ok()) status = Check(part.path());
  if (absl::IsDataLoss(status)) {  // all pages were copied unchanged, so the source is damaged too
    return absl::DataLossError(absl::StrCat(path,
                                            " is damaged, so no backup was made; keep the earlier ones and "
                                            "restore the newest (",
                                            status.message(), ")"));
  }
  return status.ok() ? part.Finish() : status;
}

}  // namespace scalelab::db
