// The seam between what commands answer and how it is written: table, JSON or CSV.
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

// How a value is meant; shown as colour where there is colour.
enum class Tone { kPlain, kGood, kBad, kBusy, kDim };

struct Cell {
  Cell(std::string text, Tone tone = Tone::kPlain)
      : text(std::move(text)), tone(tone) {}  // NOLINT: rows read better
  Cell(const char* text) : text(text) {}      // NOLINT
  std::string text;
  Tone tone;
};

struct Column {
  // Where a column is shown: everywhere, in tables only, in wide tables only, in CSV only.
  enum class In { kAll, kTables, kWide, kCsv };
  std::string title;  // upper case in tables, as it is in CSV
  In in = In::kAll;
  bool right = false;    // numbers
  bool elastic = false;  // may be cut where the terminal is too narrow
};

using RowSink = std::function<void(const std::vector<Cell>&)>;

// A table. Rows are made while they are printed, so that a million of them need no memory; every row has a
// cell for every column, whether it is shown or not.
struct Section {
  std::string title;  // a line above the table; empty means none
  std::vector<Column> columns;
  std::function<void(const RowSink&)> rows;
  bool in_tables = true;
  bool header = true;      // of tables; CSV always has one
  std::string empty = "";  // said in tables instead of the header when there is no row
};

// One answer in all its forms.
struct Answer {
  const google::protobuf::Message& message;  // what JSON shows
  std::vector<Section> sections;             // what tables show
  size_t main = 0;                           // the section that CSV shows
};

class Printer {
 public:
  virtual ~Printer() = default;
  // Writes one complete answer that ends in a line break and flushes it, so that a script that reads line by
  // line sees it at once; may be called again for another one. CSV gives values as they are; the others let
  // no control character of the data through to a terminal. UNKNOWN when the stream does not take it (disk
  // full, reader gone).
  virtual absl::Status Print(const Answer& answer) = 0;
};

// `out` must outlive the printer.
std::unique_ptr<Printer> MakePrinter(OutputFormat format, std::ostream& out, const Terminal& terminal);

// For implementations: flushes, and says whether everything got out.
absl::Status Flush(std::ostream& out);

}  // namespace scalelab::client
