// Writes tables into files.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/export/data_table.h"

namespace scalelab::client {

// Write `path` in place of an existing file. A file with the suffix ".part" contains the data until they are complete. Errors: those of the
// rows; UNKNOWN if a file cannot be written.

// A header and a line for each row (RFC 4180). An empty cell is nothing.
absl::Status WriteCsv(const DataTable& table, const std::string& path);
// The same to a stream, whose errors the caller checks.
absl::Status WriteCsv(const DataTable& table, std::ostream& out);
// An array with an object for each row, one a line.
absl::Status WriteJson(const DataTable& table, const std::string& path);
// A database with the tables.
absl::Status WriteSqlite(const std::vector<DataTable>& tables, const std::string& path);

}  // namespace scalelab::client
