// The tables and columns of an archive, and how the ids in them change when it is restored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "db/archive/archive_ids.h"
#include "db/sqlite/sqlite.h"

namespace scalelab::db {

// How a restore changes the value of a column.
enum class Change {
  kNone,
  kNew,         // the row's own id: it gets the next number
  kReference,   // the id of a row that came before; 0 stays 0
  kHighBits,    // an id of an earlier row in the upper 32 bits; 0 stays 0
  kMetricName,  // the name of a metric, for which the table stores a number
  kNoticeKey,   // gets a prefix, because keys are unique
  kNull,        // not restored: the database chooses the value
  kEmpty,       // not restored: an empty text
};

struct ArchiveColumn {
  const char* name;
  Change change = Change::kNone;
  Numbered of = Numbered::kNothing;
  const char* expression = nullptr;  // SQL whose value is written in place of the column
  const char* published = nullptr;   // like `expression`, in an archive for other people
  // The value in archives of schemas that did not have the column: what its migration gives to old rows. Absent: every schema
  // with archives has it.
  std::optional<Value> before = std::nullopt;
};

struct ArchiveTable {
  const char* name;
  std::vector<ArchiveColumn> columns;
  // The rows of the study ?1, as a FROM clause in which `t` is the table.
  const char* from;
  std::string select, insert;  // SQL made of the members above
  std::string published;       // `select` for an archive for other people; empty: leaves out all rows
};

// In the order in which rows are written: those that a row refers to come first.
const std::vector<ArchiveTable>& ArchiveTables();

// Returns the index of a column. It must exist.
size_t ColumnIndex(const ArchiveTable& table, const char* column);

}  // namespace scalelab::db
