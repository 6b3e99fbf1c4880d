// A table for export, with typed cells. The table produces its rows one after another, while
// they are written.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
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

}  // namespace scalelab::client
