// A small RAII layer over SQLite's C interface, internal to db/.
//
// A Database and its statements may be used by one thread at a time, because connections are opened without
// SQLite's own mutexes. Errors are absl::Status; the message names the file and what to do:
//
//   RESOURCE_EXHAUSTED   disk full, I/O error or out of memory; nothing was written, and a retry is safe
//   UNAVAILABLE          another process holds a lock
//   FAILED_PRECONDITION  no permission, read-only, not a database, or a violated constraint
//   ALREADY_EXISTS       a unique value exists already
//   DATA_LOSS            the file is damaged
#pragma once

#include <sqlite3.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab::db {

// "ScLb": distinguishes scalelab's files from other SQLite databases.
inline constexpr int64_t kApplicationId = 0x53634c62;

// A connection.
class Database {
 public:
  enum class Mode { kReadOnly, kReadWrite };

  // Opens a connection. kReadWrite creates the file if it does not exist. `busy_timeout_ms` is how long
  // statements wait for another connection's lock.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path, Mode mode,
                                                        int busy_timeout_ms);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Runs statements without parameters, separated by ';'. Ignores their rows.
  absl::Status Execute(const std::string& sql);
  // Return the first column of the first row. For a statement that always has a row, such as a PRAGMA.
  absl::StatusOr<int64_t> QueryInt(const std::string& sql);
  absl::StatusOr<std::string> QueryText(const std::string& sql);

  // Returns the status of this connection's last error.
  absl::Status LastError() const;
  // Checks that `path` still names the file of this connection, and that the file still begins with the header of
  // a scalelab database. Costs three system calls. Returns FAILED_PRECONDITION if it or its WAL was deleted, moved or
  // replaced, DATA_LOSS if it was emptied or overwritten.
  absl::Status CheckFile() const;
  // Makes each statement call `changed` with the table and the id of each row that it inserts, updates or deletes in a
  // table with integer ids. The change is not committed yet.
  void ReportChanges(std::function<void(absl::string_view table, int64_t id)> changed);
  // Makes CheckFile check the WAL too.
  void set_uses_wal(bool uses_wal) { uses_wal_ = uses_wal; }
  // Number of pages in the WAL after this connection's last commit; 0 before that, and without a WAL.
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
  bool uses_wal_ = false, has_wal_ = false;                     // has_wal_: the WAL is not empty any more
  absl::flat_hash_map<const char*, sqlite3_stmt*> statements_;  // by address of the SQL text, see Statement
  std::function<void(absl::string_view, int64_t)> changed_;     // called for each change; may be empty
};

// Converts an extended result code `rc` and an errno (0 if there is none) to a status of the table above.
absl::Status StatusOf(int rc, int system_error, absl::string_view path, absl::string_view message);

// Whether `status` is the UNAVAILABLE of a read-only connection that found the journal of an interrupted commit, which
// only a writing connection can roll back.
bool NeedsRollback(const absl::Status& status);

// Returns DATA_LOSS with the sentence for a database `path` that is damaged at `where`.
absl::Status Damaged(absl::string_view path, absl::string_view where);

// A value of any type, for code that copies rows without knowing what they mean.
struct Value {
  enum class Type : unsigned char { kNull, kInteger, kReal, kText, kBlob };
  Type type = Type::kNull;
  int64_t integer = 0;
  double real = 0;
  std::string bytes;  // of a text or a blob
};

// One use of a prepared statement; the destructor resets it. Each connection prepares a text once and caches
// it by *address*: pass literals, or strings that live as long as the program.
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

  // Binds the first parameters. Text and blobs are not copied, so they must live until the last Step.
  template <class... T>
  void Bind(const T&... values) {
    int i = 0;
    (BindAt(++i, values), ...);
  }
  // Advances to the next row. Returns false at the end and after an error, which status() then returns.
  bool Step();
  absl::Status status() const { return status_; }
  // Binds the values, runs the statement to its end and resets it. For statements without rows; may
  // be called repeatedly.
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
  // Reads the first columns of the current row. A number that does not fit its type, or is no member of its
  // enumeration, is damage: status() then returns DATA_LOSS, and the next Step returns false.
  template <class... T>
  void Read(T&... values) {
    ReadFrom(0, values...);
  }
  // As Read, from column `i` on.
  template <class... T>
  void ReadFrom(int i, T&... values) {
    (ReadAt(i++, values), ...);
  }

  struct Blob {
    const void* data;  // null only if `size` is 0
    size_t size;
  };
  // Returns a blob of the current row, valid until the next Step.
  Blob BlobAt(int column);
  // Returns a value of the current row. Returns NULL, and sets status(), if it does not fit into memory.
  Value ValueAt(int column);
  // Binds one parameter, counted from 1. The value must live until the last Step.
  void BindValue(int i, const Value& value);
  // Number of rows that the last INSERT, UPDATE or DELETE on this connection changed.
  int64_t changes() const { return sqlite3_changes64(db_.handle()); }

 private:
  template <class T>
  requires std::integral<T> || std::is_enum_v<T>
  void BindAt(int i, T v) { Check(sqlite3_bind_int64(statement_, i, static_cast<int64_t>(v))); }
  void BindAt(int i, double v) { Check(sqlite3_bind_double(statement_, i, v)); }  // SQLite stores NaN as NULL
  void BindAt(int i, absl::string_view v);
  void BindAt(int i, const std::string& v) { BindAt(i, absl::string_view(v)); }
  void BindAt(int i, const char* v) { BindAt(i, absl::string_view(v)); }
  void BindAt(int i, Blob v);
  void BindAt(int i, const std::map<std::string, double>& v);  // as a JSON object
  template <class T>
  void BindAt(int i, const std::optional<T>& v) {
    if (v.has_value())
      BindAt(i, *v);
    else
      Check(sqlite3_bind_null(statement_, i));
  }

  template <std::integral T>
  void ReadAt(int i, T& v) {
    const int64_t stored = sqlite3_column_int64(statement_, i);
    v = static_cast<T>(stored);
    if (!std::in_range<std::conditional_t<std::same_as<T, bool>, unsigned char, T>>(stored)) {
      SetDamaged(i, stored);
    }
  }
  // LastOf(T) is the largest member of the enumeration; the members are consecutive.
  template <class T>
  requires std::is_enum_v<T>
  void ReadAt(int i, T& v) {
    const int64_t stored = sqlite3_column_int64(statement_, i);
    const bool known = stored >= 0 && stored <= static_cast<int64_t>(LastOf(T{}));
    v = known ? static_cast<T>(stored) : T{};
    if (!known) SetDamaged(i, stored);
  }
  void ReadAt(int i, double& v) {
    v = IsNull(i) ? std::numeric_limits<double>::quiet_NaN() : sqlite3_column_double(statement_, i);
  }
  void ReadAt(int i, std::string& v);
  void ReadAt(int i, std::map<std::string, double>& v);
  // Reads the type only once, because curves read millions of these.
  void ReadAt(int i, std::optional<double>& v) {
    if (IsNull(i))
      v.reset();
    else
      v = sqlite3_column_double(statement_, i);
  }
  template <class T>
  void ReadAt(int i, std::optional<T>& v) {
    v.reset();
    if (!IsNull(i)) ReadAt(i, v.emplace());
  }
  bool IsNull(int i) const { return sqlite3_column_type(statement_, i) == SQLITE_NULL; }
  void SetDamaged(int column, int64_t value);
  void Check(int rc) {
    if (rc != SQLITE_OK && status_.ok()) status_ = db_.LastError();
  }

  Database& db_;
  sqlite3_stmt* statement_;
  absl::Status status_;
};

// A transaction. The destructor rolls it back unless it was committed.
class Transaction {
 public:
  enum class Kind { kRead, kWrite };
  Transaction(Database& db, Kind kind);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  // OK if the transaction began.
  const absl::Status& status() const { return status_; }
  absl::Status Commit();

 private:
  Database& db_;
  absl::Status status_;
  bool open_ = false;
};

}  // namespace scalelab::db
