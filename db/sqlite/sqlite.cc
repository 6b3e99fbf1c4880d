#include "db/sqlite/sqlite.h"

#include <cmath>
#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "planted/bug.h"

namespace scalelab::db {
namespace {

constexpr char kNeedsRollback[] = "scalelab.db/needs_rollback";  // type of a payload
// https://www.sqlite.org/fileformat.html#the_database_header
constexpr int kHeaderBytes = 100, kApplicationIdOffset = 68;

// Returns the table that a statement uses: the word after the first "FROM", "INTO" or "UPDATE" of `sql`.
absl::string_view TableOf(absl::string_view sql) {
  for (const absl::string_view word : {" FROM ", "INTO ", "UPDATE "}) {
    const size_t at = sql.find(word);
    if (at == absl::string_view::npos) continue;
    const absl::string_view rest = sql.substr(at + word.size());
    return rest.substr(0, rest.find(' '));
  }
  return sql;
}

}  // namespace

absl::Status StatusOf(int rc, int system_error, absl::string_view path, absl::string_view message) {
  const std::string why =
      system_error == 0 ? std::string(message) : absl::StrCat(message, ": ", std::strerror(system_error));
  switch (rc & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
      return absl::OkStatus();
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(
          absl::StrCat("No space is left to write ", path, " (", why,
                       "); nothing was changed: free space on its disk and try again"));
    case SQLITE_IOERR:
      if (rc == SQLITE_IOERR_SHORT_READ) return Damaged(path, "it is shorter than it was");
      return absl::ResourceExhaustedError(
          absl::StrCat(path, " could not be read or written (", why,
                       "); nothing was changed: check the space and the health of its disk and try again"));
    case SQLITE_NOMEM:
      return absl::ResourceExhaustedError(
          absl::StrCat("Memory ran out while working on ", path, "; try again"));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL:
      return absl::UnavailableError(absl::StrCat(path, " is locked by another process (", why,
                                                 "); close other programs that use it and try again"));
    case SQLITE_READONLY:
      if (rc == SQLITE_READONLY_ROLLBACK) {
        absl::Status status = absl::UnavailableError(absl::StrCat(
            path, " has a journal of an interrupted commit that is not rolled back yet; try again"));
        status.SetPayload(kNeedsRollback, absl::Cord());
        return status;
      }
      return absl::FailedPreconditionError(
          absl::StrCat(path, " cannot be written (", why,
                       "); give this user write permission to the file and its folder"));
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return absl::FailedPreconditionError(
          absl::StrCat(path, " cannot be opened (", why,
                       "); check that its folder exists and that this user may read and write there"));
    case SQLITE_NOTADB:
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is not an SQLite database; name another file, or move this one away"));
    case SQLITE_CORRUPT:
      return Damaged(path, why);
    case SQLITE_CONSTRAINT:
      if (rc == SQLITE_CONSTRAINT_UNIQUE || rc == SQLITE_CONSTRAINT_PRIMARYKEY) {
        return absl::AlreadyExistsError(
            absl::StrCat(path, " already has such a row (", why, "); nothing was changed"));
      }
      return absl::FailedPreconditionError(absl::StrCat(
          path, " refused a row (", why, "); nothing was changed: write what it refers to first"));
    case SQLITE_TOOBIG:
      return absl::InvalidArgumentError(absl::StrCat("A value is too large for ", path, " (", why, ")"));
    default:
      return absl::InternalError(absl::StrCat("SQLite failed on ", path, " (", why, ", code ", rc, ")"));
  }
}

bool NeedsRollback(const absl::Status& status) { return status.GetPayload(kNeedsRollback).has_value(); }

absl::Status Damaged(absl::string_view path, absl::string_view where) {
  return absl::DataLossError(absl::StrCat(path, " is damaged (", where,
                                          "); stop scalelabd, keep a copy of the file and restore a backup"));
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path, Mode mode,
                                                         int busy_timeout_ms) {
  // Turns off SQLite's memory statistics, which take a lock for each allocation. If SQLite is already in use
  // in this process, this call has no effect and does no harm.
  static const int without_statistics = sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
  (void)without_statistics;
  std::unique_ptr<Database> db(new Database(path));
  const int flags =
      SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE |
      (mode == Mode::kReadOnly ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  const int rc = sqlite3_open_v2(path.c_str(), &db->handle_, flags, nullptr);
  if (rc != SQLITE_OK) {
    const int system_error = db->handle_ == nullptr ? 0 : sqlite3_system_errno(db->handle_);
    return StatusOf(rc, system_error, path, sqlite3_errstr(rc));
  }
  sqlite3_busy_timeout(db->handle_, busy_timeout_ms);
  if (mode == Mode::kReadOnly) {
    // Only the writer may checkpoint, even when the last connection closes.
    sqlite3_db_config(db->handle_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  }
  // Setting a hook also turns off automatic checkpoints; the writer decides when to checkpoint.
  sqlite3_wal_hook(
      db->handle_,
      [](void* self, sqlite3*, const char*, int pages) {
        Database& db = *static_cast<Database*>(self);
        db.wal_pages_ = pages;
        db.has_wal_ = db.uses_wal_;
        return SQLITE_OK;
      },
      db.get());
  return db;
}

Database::~Database() {
  for (const auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  if (handle_ != nullptr) sqlite3_close(handle_);
}

absl::Status Database::LastError() const {
  const int rc = sqlite3_extended_errcode(handle_);
  const int primary = rc & 0xff;
  const bool from_system = primary == SQLITE_IOERR || primary == SQLITE_FULL || primary == SQLITE_CANTOPEN;
  return StatusOf(rc, from_system ? sqlite3_system_errno(handle_) : 0, path_, sqlite3_errmsg(handle_));
}

absl::Status Database::CheckFile() const {
  if (Planted(Bug::kLostDatabaseUnnoticed)) return absl::OkStatus();
  const auto gone = [](absl::string_view file) {
    return absl::FailedPreconditionError(
        absl::StrCat(file,
                     " was deleted, moved or replaced while it is in use; nothing more is stored: stop "
                     "scalelabd, put the file back or restore a backup, and start scalelabd again"));
  };
  int moved = 0;
  sqlite3_file_control(handle_, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
  if (moved != 0) return gone(path_);
  sqlite3_vfs* vfs = nullptr;
  sqlite3_file_control(handle_, "main", SQLITE_FCNTL_VFS_POINTER, &vfs);
  const std::string wal = path_ + "-wal";
  int exists = 1;
  if (has_wal_ && vfs != nullptr &&
      vfs->xAccess(vfs, wal.c_str(), SQLITE_ACCESS_EXISTS, &exists) == SQLITE_OK && exists == 0) {
    return gone(wal);
  }
  sqlite3_file* file = nullptr;
  sqlite3_file_control(handle_, "main", SQLITE_FCNTL_FILE_POINTER, &file);
  if (file == nullptr || file->pMethods == nullptr) return absl::OkStatus();
  // Reads through SQLite's own descriptor, because closing another one would drop SQLite's locks.
  unsigned char header[kHeaderBytes];
  const int rc = file->pMethods->xRead(file, header, kHeaderBytes, 0);
  if (rc == SQLITE_IOERR_SHORT_READ) return Damaged(path_, "it was emptied while it is in use");
  if (rc != SQLITE_OK) return absl::OkStatus();  // the transaction finds I/O errors by itself
  uint32_t application = 0;
  for (int i = 0; i < 4; ++i) application = application << 8 | header[kApplicationIdOffset + i];
  if (std::memcmp(header, "SQLite format 3", 16) != 0 || application != kApplicationId) {
    return Damaged(path_, "it was overwritten while it is in use");
  }
  return absl::OkStatus();
}

void Database::ReportChanges(std::function<void(absl::string_view, int64_t)> changed) {
  changed_ = std::move(changed);
  sqlite3_update_hook(
      handle_,
      [](void* self, int, const char*, const char* table, sqlite3_int64 id) {
        static_cast<Database*>(self)->changed_(table, id);
      },
      this);
}

absl::Status Database::Execute(const std::string& sql) {
  return sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK ? absl::OkStatus()
                                                                                    : LastError();
}

absl::StatusOr<std::string> Database::QueryText(const std::string& sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(handle_, sql.c_str(), -1, &statement, nullptr) != SQLITE_OK) return LastError();
  absl::StatusOr<std::string> result;
  if (sqlite3_step(statement) == SQLITE_ROW) {
    const unsigned char* text = sqlite3_column_text(statement, 0);
    result = text == nullptr ? "" : reinterpret_cast<const char*>(text);
  } else {
    const absl::Status error = LastError();
    result = error.ok() ? Damaged(path_, absl::StrCat("a row is missing: ", sql)) : error;
  }
  sqlite3_finalize(statement);
  return result;
}

absl::StatusOr<int64_t> Database::QueryInt(const std::string& sql) {
  absl::StatusOr<std::string> text = QueryText(sql);
  if (!text.ok()) return text.status();
  return std::strtoll(text->c_str(), nullptr, 10);
}

sqlite3_stmt* Database::Prepare(const char* sql) {
  sqlite3_stmt*& statement = statements_[sql];
  if (statement == nullptr) {
    sqlite3_prepare_v3(handle_, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  }
  return statement;
}

Statement::Statement(Database& db, const char* sql) : db_(db), statement_(db.Prepare(sql)) {
  if (statement_ != nullptr) return;
  status_ = db_.LastError();
  // This program wrote the statement, so a syntax error means that the schema of the database is damaged.
  if (absl::IsInternal(status_)) {
    status_ = Damaged(db_.path(),
                      absl::StrCat("schema of table ", TableOf(sql), ", ", sqlite3_errmsg(db_.handle())));
  }
}

Statement::~Statement() { Reset(); }

bool Statement::Step() {
  if (!status_.ok()) return false;
  const int rc = sqlite3_step(statement_);
  if (rc == SQLITE_ROW) return true;
  const int primary = rc & 0xff;
  // A row of the database is never too large to be read, so SQLITE_TOOBIG of a read means damage.
  if (primary == SQLITE_CORRUPT || (primary == SQLITE_TOOBIG && sqlite3_stmt_readonly(statement_) != 0)) {
    status_ = Damaged(db_.path(), absl::StrCat("table ", TableOf(sqlite3_sql(statement_)), ", ",
                                               sqlite3_errmsg(db_.handle())));
  } else if (rc != SQLITE_DONE) {
    status_ = db_.LastError();
  }
  return false;
}

void Statement::SetDamaged(int column, int64_t value) {
  if (!status_.ok()) return;
  status_ =
      Damaged(db_.path(), absl::StrCat("table ", TableOf(sqlite3_sql(statement_)), ", column ",
                                       sqlite3_column_name(statement_, column), " has the value ", value));
}

void Statement::BindAt(int i, absl::string_view v) {
  // A null pointer would bind NULL instead of an empty string.
  Check(sqlite3_bind_text64(statement_, i, v.empty() ? "" : v.data(), v.size(), SQLITE_STATIC, SQLITE_UTF8));
}

void Statement::BindAt(int i, Blob v) {
  Check(sqlite3_bind_blob64(statement_, i, v.size == 0 ? "" : v.data, v.size, SQLITE_STATIC));
}

void Statement::BindAt(int i, const std::map<std::string, double>& v) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, value] : v) object[name] = value;  // NaN is written as null
  const std::string text = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  Check(sqlite3_bind_text64(statement_, i, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
}

Statement::Blob Statement::BlobAt(int column) {
  // If SQLite could not load a blob, sqlite3_column_bytes does not return 0.
  const void* data = sqlite3_column_blob(statement_, column);
  return {data, data == nullptr ? 0 : static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

Value Statement::ValueAt(int column) {
  Value value;
  switch (sqlite3_column_type(statement_, column)) {
    case SQLITE_INTEGER:
      value.type = Value::Type::kInteger;
      value.integer = sqlite3_column_int64(statement_, column);
      break;
    case SQLITE_FLOAT:
      value.type = Value::Type::kReal;
      value.real = sqlite3_column_double(statement_, column);
      break;
    case SQLITE_TEXT:
    case SQLITE_BLOB: {
      const bool text = sqlite3_column_type(statement_, column) == SQLITE_TEXT;
      const Blob blob = BlobAt(column);
      if (blob.data == nullptr && sqlite3_errcode(db_.handle()) == SQLITE_NOMEM) {
        if (status_.ok()) status_ = db_.LastError();
        break;
      }
      value.type = text ? Value::Type::kText : Value::Type::kBlob;
      if (blob.size > 0) value.bytes.assign(static_cast<const char*>(blob.data), blob.size);
      break;
    }
    default:
      break;
  }
  return value;
}

void Statement::BindValue(int i, const Value& value) {
  switch (value.type) {
    case Value::Type::kInteger:
      return BindAt(i, value.integer);
    case Value::Type::kReal:
      return BindAt(i, value.real);
    case Value::Type::kText:
      return BindAt(i, value.bytes);
    case Value::Type::kBlob:
      return BindAt(i, Blob{value.bytes.data(), value.bytes.size()});
    case Value::Type::kNull:
      return Check(sqlite3_bind_null(statement_, i));
  }
}

void Statement::ReadAt(int i, std::string& v) {
  const unsigned char* text = sqlite3_column_text(statement_, i);
  if (text == nullptr)
    v.clear();
  else
    v.assign(reinterpret_cast<const char*>(text), sqlite3_column_bytes(statement_, i));
}

void Statement::ReadAt(int i, std::map<std::string, double>& v) {
  v.clear();
  std::string text;
  ReadAt(i, text);
  const nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
  if (!object.is_object()) return;
  for (const auto& [name, value] : object.items()) {
    v[name] = value.is_number() ? value.get<double>() : std::nan("");
  }
}

Transaction::Transaction(Database& db, Kind kind) : db_(db) {
  status_ = Statement(db, kind == Kind::kWrite ? "BEGIN IMMEDIATE" : "BEGIN").Run();
  open_ = status_.ok();
}

Transaction::~Transaction() {
  // After some errors SQLite has already rolled back.
  if (open_ && sqlite3_get_autocommit(db_.handle()) == 0) Statement(db_, "ROLLBACK").Run().IgnoreError();
}

absl::Status Transaction::Commit() {
  absl::Status status = Statement(db_, "COMMIT").Run();
  if (status.ok()) open_ = false;
  return status;
}

}  // namespace scalelab::db
