// The interface of the output formats: table, JSON and CSV.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/output/terminal.h"
#include "google/protobuf/message.h"

namespace scalelab::client {

enum class OutputFormat { kTable, kWide, kJson, kCsv };

// The meaning of a value. Shown as a colour if the terminal has colours.
enum class Tone { kPlain, kGood, kBad, kBusy, kDim };

struct Cell {
  Cell(std::string text, Tone tone = Tone::kPlain)
      : text(std::move(text)), tone(tone) {}  // NOLINT: rows read better
  Cell(const char* text) : text(text) {}      // NOLINT
  std::string text;
  Tone tone;
};

struct Column {
  // The formats that show a column: all, tables only, wide tables only, CSV only.
  enum class In { kAll, kTables, kWide, kCsv };
  std::string title;  // in upper case in tables, unchanged in CSV
  In in = In::kAll;
  bool right = false;    // numbers
  bool elastic = false;  // may be truncated if the terminal is too narrow
  int drop =
      0;  // a table that is too wide for the terminal loses the columns with the largest number first; 0: never
  bool sentence = false;  // if a cell is truncated, its complete text is printed below the table
  bool wrapped = false;   // the last column only: a sentence that continues on further lines
};

using RowSink = std::function<void(const std::vector<Cell>&)>;

// A table. Rows are generated while they are printed, so that a million rows need no memory. Every row has a
// cell for every column, including columns that are not shown.
struct Section {
  std::string title;  // a line above the table; empty for none
  std::vector<Column> columns;
  std::function<void(const RowSink&)> rows;
  bool in_tables = true;
  bool header = true;      // in tables; CSV always has a header
  std::string empty = "";  // printed in tables instead of the header if there are no rows
  // Number of rows on a terminal, unless the table is wide. 0: all. `more_rows` names the options that select rows.
  size_t most_rows = 0;
  std::string more_rows = "";
};

// One answer in every output format.
struct Answer {
  const google::protobuf::Message& message;  // for JSON
  std::vector<Section> sections;             // for tables
  size_t main = 0;                           // index of the section for CSV
};

class Printer {
 public:
  virtual ~Printer() = default;
  // Writes one complete answer that ends in a line break and flushes it, so that a script that reads line by
  // line sees it immediately. May be called again for another answer. CSV contains values unchanged; the
  // other formats replace control characters, so that data cannot control a terminal. Returns UNKNOWN if
  // writing fails (disk full, pipe closed).
  virtual absl::Status Print(const Answer& answer) = 0;
};

// `out` must outlive the printer.
std::unique_ptr<Printer> MakePrinter(OutputFormat format, std::ostream& out, const Terminal& terminal);

// For implementations: flushes `out` and returns an error unless everything was written.
absl::Status Flush(std::ostream& out);
// Returns the error of Flush if a write to `out` has failed. Does not flush.
absl::Status CheckWritten(const std::ostream& out);

}  // namespace scalelab::client
