#include "db/sqlite.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace scalelab::db {

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
      return absl::DataLossError(
          absl::StrCat(path, " is damaged (", why, "); stop, keep a copy and restore a backup"));
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

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path, Mode mode,
                                                         int busy_timeout_ms) {
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
        static_cast<Database*>(self)->wal_pages_ = pages;
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
    result = LastError();
    if (result.status().ok()) result = absl::InternalError(absl::StrCat("No row: ", sql));
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
  if (statement_ == nullptr) status_ = db_.LastError();
}

Statement::~Statement() { Reset(); }

bool Statement::Step() {
  if (!status_.ok()) return false;
  const int rc = sqlite3_step(statement_);
  if (rc == SQLITE_ROW) return true;
  if (rc != SQLITE_DONE) status_ = db_.LastError();
  return false;
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

Statement::Blob Statement::BlobAt(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  return {data, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

void Statement::ReadAt(int i, std::string& v) const {
  const unsigned char* text = sqlite3_column_text(statement_, i);
  if (text == nullptr)
    v.clear();
  else
    v.assign(reinterpret_cast<const char*>(text), sqlite3_column_bytes(statement_, i));
}

void Statement::ReadAt(int i, std::map<std::string, double>& v) const {
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
