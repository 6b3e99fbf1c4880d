// A table for export, with typed cells. The table produces its rows one after another, while
// they are written.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"

namespace scalelab::client {

// No value, a text, an integer or a floating-point number. A number that is not finite becomes text in CSV,
// and no value in other formats.
using DataCell = std::variant<std::monostate, std::string, int64_t, double>;

// Writes one row, which has a cell for each column. After an error, the caller stops.
using DataSink = std::function<absl::Status(const std::vector<DataCell>&)>;

struct DataTable {
  std::string name;  // "runs"
  std::vector<std::string> columns;
  // Passes all rows to the sink. Returns the first error of the sink or of reading the rows.
  std::function<absl::Status(const DataSink&)> rows;
};

// Returns a table with some columns of `table`. `kept` has their indices, in the order of the result.
inline DataTable SelectColumns(DataTable table, std::vector<size_t> kept) {
  DataTable some{table.name, {}, nullptr};
  for (const size_t column : kept) some.columns.push_back(table.columns[column]);
  some.rows = [rows = std::move(table.rows), kept = std::move(kept)](const DataSink& sink) {
    return rows([&](const std::vector<DataCell>& row) {
      std::vector<DataCell> cells;
      for (const size_t column : kept) cells.push_back(row[column]);
      return sink(cells);
    });
  };
  return some;
}

}  // namespace scalelab::client
