// A table for other programs: typed cells, and rows that are made while they are written.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"

namespace scalelab::client {

// Nothing, text, a whole number or a number. A number that is not finite is written as text in CSV and as nothing elsewhere.
using DataCell = std::variant<std::monostate, std::string, int64_t, double>;

// Takes one row, which has a cell for each column. After an error, the caller stops.
using DataSink = std::function<absl::Status(const std::vector<DataCell>&)>;

struct DataTable {
  std::string name;  // "runs"
  std::vector<std::string> columns;
  // Passes all rows to the sink. Returns its first error, or that of reading the rows.
  std::function<absl::Status(const DataSink&)> rows;
};

}  // namespace scalelab::client
