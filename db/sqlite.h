// A small RAII layer over SQLite's C interface. Nothing outside db/ includes it.
//
// A Database and all that belongs to it are used by one thread at a time; connections are opened without
// SQLite's own mutexes. Errors are absl::Status with a sentence that names the file and what to try:
//   RESOURCE_EXHAUSTED   disk full, I/O error, out of memory; nothing was written, the call may be made again
//   UNAVAILABLE          another process holds a lock
//   FAILED_PRECONDITION  no permission, read-only, no database, a row that breaks a constraint
//   ALREADY_EXISTS       a row whose unique value is taken
//   DATA_LOSS            the file is damaged
#pragma once

#include <sqlite3.h>

#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab::db {

class Database {
 public:
  enum class Mode { kReadOnly, kReadWrite };

  // kReadWrite creates the file if it is not there. `busy_timeout_ms`: how long to wait for another
  // connection's lock.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path, Mode mode,
                                                        int busy_timeout_ms);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Statements without parameters, several if separated by ';'. Rows are ignored.
  absl::Status Execute(const std::string& sql);
  // The first column of the first row of a statement that always has one, for example a PRAGMA.
  absl::StatusOr<int64_t> QueryInt(const std::string& sql);
  absl::StatusOr<std::string> QueryText(const std::string& sql);

  // The status of this connection's last error.
  absl::Status LastError() const;
  // Pages in the WAL after the last commit of this connection; 0 before, and without a WAL.
  int wal_pages() const { return wal_pages_; }
  void reset_wal_pages() { wal_pages_ = 0; }
  const std::string& path() const { return path_; }
  sqlite3* handle() const { return handle_; }

 private:
  friend class Statement;
  explicit Database(std::string path) : path_(std::move(path)) {}
  sqlite3_stmt* Prepare(const char* sql);

  std::string path_;
  sqlite3* handle_ = nullptr;
  int wal_pages_ = 0;
  absl::flat_hash_map<const char*, sqlite3_stmt*> statements_;  // by address, see Statement
};

// What went wrong, in the words of this room; `rc` is an extended result code, `system_error` an errno or 0.
absl::Status StatusOf(int rc, int system_error, absl::string_view path, absl::string_view message);

// One use of a prepared statement; the destructor resets it. Preparing is done once for each connection and
// each `sql`, told apart by *address*: pass literals or strings that live as long as the program.
//
//   Statement s(db, "SELECT id, name FROM study WHERE state = ?");
//   s.Bind(state);
//   while (s.Step()) s.Read(id, name);
//   return s.status();
class Statement {
 public:
  Statement(Database& db, const char* sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Binds the parameters from the first one on. Text and blobs are not copied: they must live until the last
  // Step.
  template <class... T>
  void Bind(const T&... values) {
    int i = 0;
    (BindAt(++i, values), ...);
  }
  // True when there is a row; false at the end and after an error, which status() tells.
  bool Step();
  absl::Status status() const { return status_; }
  // Binds, runs to the end, resets. For statements that return no rows; may be called again and again.
  template <class... T>
  absl::Status Run(const T&... values) {
    Bind(values...);
    while (Step()) {
    }
    Reset();
    return status_;
  }
  void Reset() {
    if (statement_ != nullptr) sqlite3_reset(statement_);
  }
  // Reads the columns of the row from the first one on.
  template <class... T>
  void Read(T&... values) const {
    int i = 0;
    (ReadAt(i++, values), ...);
  }

  struct Blob {
    const void* data;
    size_t size;
  };
  // Valid until the next Step.
  Blob BlobAt(int column) const;

 private:
  template <class T>
  requires std::integral<T> || std::is_enum_v<T>
  void BindAt(int i, T v) { Check(sqlite3_bind_int64(statement_, i, static_cast<int64_t>(v))); }
  void BindAt(int i, double v) { Check(sqlite3_bind_double(statement_, i, v)); }  // NaN becomes NULL
  void BindAt(int i, absl::string_view v);
  void BindAt(int i, const std::string& v) { BindAt(i, absl::string_view(v)); }
  void BindAt(int i, const char* v) { BindAt(i, absl::string_view(v)); }
  void BindAt(int i, Blob v);
  void BindAt(int i, const std::map<std::string, double>& v);  // JSON object
  template <class T>
  void BindAt(int i, const std::optional<T>& v) {
    if (v.has_value())
      BindAt(i, *v);
    else
      Check(sqlite3_bind_null(statement_, i));
  }

  template <class T>
  requires std::integral<T> || std::is_enum_v<T>
  void ReadAt(int i, T& v) const { v = static_cast<T>(sqlite3_column_int64(statement_, i)); }
  void ReadAt(int i, double& v) const {
    v = IsNull(i) ? std::numeric_limits<double>::quiet_NaN() : sqlite3_column_double(statement_, i);
  }
  void ReadAt(int i, std::string& v) const;
  void ReadAt(int i, std::map<std::string, double>& v) const;
  void ReadAt(int i,
              std::optional<double>& v) const {  // asks for the type once: curves read a million of these
    if (IsNull(i))
      v.reset();
    else
      v = sqlite3_column_double(statement_, i);
  }
  template <class T>
  void ReadAt(int i, std::optional<T>& v) const {
    v.reset();
    if (!IsNull(i)) ReadAt(i, v.emplace());
  }
  bool IsNull(int i) const { return sqlite3_column_type(statement_, i) == SQLITE_NULL; }
  void Check(int rc) {
    if (rc != SQLITE_OK && status_.ok()) status_ = db_.LastError();
  }

  Database& db_;
  sqlite3_stmt* statement_;
  absl::Status status_;
};

// Rolls back in its destructor unless committed.
class Transaction {
 public:
  enum class Kind { kRead, kWrite };
  Transaction(Database& db, Kind kind);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  // Whether it began.
  const absl::Status& status() const { return status_; }
  absl::Status Commit();

 private:
  Database& db_;
  absl::Status status_;
  bool open_ = false;
};

}  // namespace scalelab::db
