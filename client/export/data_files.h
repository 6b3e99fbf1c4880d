// Writes tables into files.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/export/data_table.h"

namespace scalelab::client {

// The functions with a `path` replace an existing file. They write to a file with the suffix ".part",
// and rename it when it is complete. They return errors of reading the rows, and UNKNOWN if a file
// cannot be written. A write error ends the reading of the rows.

// Writes a header and a line for each row (RFC 4180). A cell without a value is an empty field.
absl::Status WriteCsv(const DataTable& table, const std::string& path);
// Writes the table as CSV to a stream. The caller checks the state of the stream at the end.
absl::Status WriteCsv(const DataTable& table, std::ostream& out);
// Writes an array with one object for each row, each on its own line.
absl::Status WriteJson(const DataTable& table, const std::string& path);
// Writes an SQLite database with the tables.
absl::Status WriteSqlite(const std::vector<DataTable>& tables, const std::string& path);

}  // namespace scalelab::client
