// Converts between the cells of a study and rows of the database.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "db/records.h"
#include "study/cell_list.h"

namespace scalelab::server {

// Returns the rows of the values. A row has the same number as the value has in `values`.
std::vector<db::CellValueRow> ToRows(const CellValues& values, int64_t study_id);
// Returns the row of cell `i`, without its ids.
db::CellRow ToRow(const CellList& cells, size_t i);

// Returns the numbers of all values that the rows name, and 0, in order. Skips everything that is
// not a number.
std::vector<int> NumbersOf(absl::Span<const db::CellRow> rows);

// Reads cells of one study: cell i of the list is rows[i]. `values` must contain the values that NumbersOf returns, and
// may contain more. Returns DATA_LOSS if one is missing or if a row cannot be parsed.
absl::StatusOr<CellList> ReadCells(absl::Span<const db::CellValueRow> values,
                                   absl::Span<const db::CellRow> rows);

}  // namespace scalelab::server
