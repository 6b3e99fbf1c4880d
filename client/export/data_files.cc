#include "client/export/data_files.h"

#include <sqlite3.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/output/file.h"
#include "client/output/printer.h"
#include "client/output/text.h"
#include "nlohmann/json.hpp"

namespace scalelab::client {
namespace {

absl::Status CannotWrite(const std::string& path, absl::string_view why) {
  return absl::UnknownError(absl::StrCat("cannot write ", path, ": ", why,
                                         "; check its directory, your permissions and the free space"));
}

void AppendCsv(const DataCell& cell, std::string& line) {
  if (const auto* whole = std::get_if<int64_t>(&cell)) return absl::StrAppend(&line, *whole);
  if (const auto* number = std::get_if<double>(&cell)) return absl::StrAppend(&line, Exact(*number));
  const auto* text = std::get_if<std::string>(&cell);
  if (text == nullptr) return;
  if (text->find_first_of(",\"\n\r") == std::string::npos) return absl::StrAppend(&line, *text);
  absl::StrAppend(&line, "\"", absl::StrReplaceAll(*text, {{"\"", "\"\""}}), "\"");
}

// Encodes a text as a JSON string. Replaces bytes that are not UTF-8.
std::string JsonText(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string JsonText(const DataCell& cell) {
  if (const auto* whole = std::get_if<int64_t>(&cell)) return absl::StrCat(*whole);
  if (const auto* text = std::get_if<std::string>(&cell)) return JsonText(*text);
  const auto* number = std::get_if<double>(&cell);
  return number != nullptr && std::isfinite(*number) ? nlohmann::json(*number).dump() : "null";
}

// Writes an array of JSON objects, one object for each row, each on its own line.
class JsonLines {
 public:
  JsonLines(const std::vector<std::string>& columns, std::ostream& out) : out_(out), cells_(columns.size()) {
    for (const std::string& column : columns) names_.push_back(absl::StrCat(JsonText(column), ":"));
  }

  absl::Status Write(const std::vector<DataCell>& row) {
    line_ = first_ ? "[\n{" : ",\n{";
    first_ = false;
    for (size_t i = 0; i < row.size(); ++i)
      absl::StrAppend(&line_, i == 0 ? "" : ",", names_[i], TextOf(i, row[i]));
    out_ << line_ << "}";
    return CheckWritten(out_);
  }
  void End() { out_ << (first_ ? "[]\n" : "\n]\n"); }

 private:
  // Returns the JSON text of a cell. Consecutive rows often have equal texts, such as the name of a run, so
  // this function reuses the text of the previous row.
  const std::string& TextOf(size_t column, const DataCell& cell) {
    Written& last = cells_[column];
    if (!std::holds_alternative<std::string>(cell) || last.json.empty() || last.cell != cell)
      last = {cell, JsonText(cell)};
    return last.json;
  }

  struct Written {
    DataCell cell;
    std::string json;
  };
  std::ostream& out_;
  std::vector<std::string> names_;
  std::vector<Written> cells_;  // the cells of the previous row
  std::string line_;
  bool first_ = true;
};

// SQLite ignores the case of column names. Adds a number to each name that differs from an earlier one only in case.
std::vector<std::string> UniqueNames(const std::vector<std::string>& names) {
  std::set<std::string> used;  // in lower case
  std::vector<std::string> unique;
  for (const std::string& name : names) {
    std::string& own = unique.emplace_back(name);
    for (int i = 2; !used.insert(absl::AsciiStrToLower(own)).second; ++i) own = absl::StrCat(name, "_", i);
  }
  return unique;
}

// A connection for one new database.
class NewDatabase {
 public:
  // Errors name the file `final_path`.
  NewDatabase(const std::string& path, std::string final_path) : final_path_(std::move(final_path)) {
    std::remove(path.c_str());
    if (sqlite3_open(path.c_str(), &handle_) != SQLITE_OK) status_ = Error();
    // SQLite needs no journal here, because the file gets its final name only when it is complete.
    if (status_.ok()) status_ = Run("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN");
  }
  ~NewDatabase() { sqlite3_close(handle_); }
  NewDatabase(const NewDatabase&) = delete;
  NewDatabase& operator=(const NewDatabase&) = delete;

  absl::Status Add(const DataTable& table) {
    if (!status_.ok()) return status_;
    const std::string columns =
        absl::StrJoin(UniqueNames(table.columns), ", ", [](std::string* out, const std::string& name) {
          absl::StrAppend(out, "\"", absl::StrReplaceAll(name, {{"\"", "\"\""}}), "\"");
        });
    if (absl::Status made = Run(absl::StrCat("CREATE TABLE ", table.name, " (", columns, ")")); !made.ok())
      return made;
    const std::string insert =
        absl::StrCat("INSERT INTO ", table.name, " VALUES (",
                     absl::StrJoin(std::vector<std::string>(table.columns.size(), "?"), ", "), ")");
    sqlite3_stmt* prepared = nullptr;
    if (sqlite3_prepare_v2(handle_, insert.c_str(), -1, &prepared, nullptr) != SQLITE_OK) return Error();
    const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement(prepared, sqlite3_finalize);
    return table.rows([this, prepared](const std::vector<DataCell>& row) { return Insert(prepared, row); });
  }
  absl::Status Commit() { return status_.ok() ? Run("COMMIT") : status_; }

 private:
  absl::Status Insert(sqlite3_stmt* statement, const std::vector<DataCell>& row) {
    for (size_t i = 0; i < row.size(); ++i) Bind(statement, static_cast<int>(i) + 1, row[i]);
    const int result = sqlite3_step(statement);
    sqlite3_reset(statement);
    return result == SQLITE_DONE ? absl::OkStatus() : Error();
  }
  // Binds a value to the statement, which does not copy texts: `cell` must exist until the row is inserted.
  static void Bind(sqlite3_stmt* statement, int at, const DataCell& cell) {
    if (const auto* whole = std::get_if<int64_t>(&cell)) {
      sqlite3_bind_int64(statement, at, *whole);
    } else if (const auto* number = std::get_if<double>(&cell)) {
      sqlite3_bind_double(statement, at, *number);  // SQLite stores NaN as NULL
    } else if (const auto* text = std::get_if<std::string>(&cell)) {
      sqlite3_bind_text(statement, at, text->data(), static_cast<int>(text->size()), SQLITE_STATIC);
    } else {
      sqlite3_bind_null(statement, at);
    }
  }
  absl::Status Run(const std::string& sql) {
    return sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK ? absl::OkStatus()
                                                                                      : Error();
  }
  absl::Status Error() const { return CannotWrite(final_path_, sqlite3_errmsg(handle_)); }

  const std::string final_path_;
  sqlite3* handle_ = nullptr;
  absl::Status status_;  // result of opening the database
};

}  // namespace

absl::Status WriteCsv(const DataTable& table, std::ostream& out) {
  std::string line;
  const auto write = [&](const std::vector<DataCell>& row) {
    line.clear();
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line.push_back(',');
      AppendCsv(row[i], line);
    }
    line.push_back('\n');
    out << line;
    return CheckWritten(out);
  };
  const std::vector<DataCell> header(table.columns.begin(), table.columns.end());
  if (absl::Status status = write(header); !status.ok()) return status;
  return table.rows(write);
}

absl::Status WriteCsv(const DataTable& table, const std::string& path) {
  return ReplaceFile(path, [&table](std::ofstream& file) { return WriteCsv(table, file); });
}

absl::Status WriteJson(const DataTable& table, const std::string& path) {
  return ReplaceFile(path, [&table](std::ofstream& file) {
    JsonLines lines(table.columns, file);
    const absl::Status status =
        table.rows([&lines](const std::vector<DataCell>& row) { return lines.Write(row); });
    lines.End();
    return status;
  });
}

absl::Status WriteSqlite(const std::vector<DataTable>& tables, const std::string& path) {
  const std::string part = path + ".part";
  absl::Status status;
  {
    NewDatabase database(part, path);
    for (const DataTable& table : tables) {
      if (status.ok()) status = database.Add(table);
    }
    if (status.ok()) status = database.Commit();
  }
  if (status.ok() && std::rename(part.c_str(), path.c_str()) != 0)
    status = CannotWrite(path, std::strerror(errno));
  if (!status.ok()) std::remove(part.c_str());
  return status;
}

}  // namespace scalelab::client
