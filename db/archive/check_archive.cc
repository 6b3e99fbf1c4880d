#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "db/archive/archive.h"
#include "db/sqlite/return_if_error.h"
#include "db/sqlite_store.h"

namespace scalelab::db {
namespace {

absl::Status Inconsistent(const ArchiveTable& table, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the archive has a row of table ", table.name, " ", what,
                                          "; nothing was stored; take another copy of the file"));
}

const Value& At(const ArchiveTable& table, const ArchiveRow& row, const char* column) {
  return row.values[ColumnIndex(table, column)];
}

// A submission allows no longer names, and only printable ASCII characters.
constexpr size_t kLongestName = 100, kLongestOwner = 64;

bool IsName(absl::string_view text, size_t longest) {
  return text.size() <= longest && std::all_of(text.begin(), text.end(), absl::ascii_isgraph);
}

// Returns an error if one of the columns is not an integer. SQLite converts a text such as "1" to a number
// when it stores the row, so a check of Value::integer alone would not see that number.
absl::Status CheckNumbers(const ArchiveTable& table, const ArchiveRow& row,
                          std::initializer_list<const char*> columns) {
  for (const char* column : columns) {
    if (At(table, row, column).type != Value::Type::kInteger)
      return Inconsistent(table, absl::StrCat("whose ", column, " is not an integer"));
  }
  return absl::OkStatus();
}

// Reads the members of the study row that a restore needs for its decisions.
absl::Status ReadStudy(const ArchiveTable& table, const ArchiveRow& row, StudyRow& study) {
  SCALELAB_RETURN_IF_ERROR(CheckNumbers(table, row, {"state", "runs", "created", "private"}));
  study.id = At(table, row, "id").integer;
  study.name = At(table, row, "name").bytes;
  study.owner = At(table, row, "owner").bytes;
  if (!IsName(study.name, kLongestName) || !IsName(study.owner, kLongestOwner))
    return Inconsistent(table, "whose name or owner is too long or has a character that is not allowed");
  study.spec = At(table, row, "spec").bytes;
  study.runs = At(table, row, "runs").integer;
  study.created = At(table, row, "created").integer;
  study.is_private = At(table, row, "private").integer != 0;
  const int64_t state = At(table, row, "state").integer;
  if (state < 0 || state > static_cast<int64_t>(LastOf(StudyState{})) ||
      !IsFinal(static_cast<StudyState>(state)))
    return Inconsistent(table, "that is not final");
  study.state = static_cast<StudyState>(state);
  return absl::OkStatus();
}

// Returns an error for a row that is not final. The coordinator would treat such a row as part of
// a running study.
absl::Status CheckState(const ArchiveTable& table, const ArchiveRow& row) {
  const std::string_view name = table.name;
  int64_t first = 0, last = 0;
  if (name == "run") {
    first = static_cast<int64_t>(RunState::kSucceeded);
    last = static_cast<int64_t>(LastOf(RunState{}));
  } else if (name == "attempt") {
    first = static_cast<int64_t>(AttemptState::kSucceeded);
    last = static_cast<int64_t>(LastOf(AttemptState{}));
  } else if (name == "allocation") {
    first = last = static_cast<int64_t>(AllocationState::kEnded);
  } else {
    return absl::OkStatus();
  }
  SCALELAB_RETURN_IF_ERROR(CheckNumbers(table, row, {"state"}));
  const int64_t state = At(table, row, "state").integer;
  return state >= first && state <= last ? absl::OkStatus() : Inconsistent(table, "that is not final");
}

// Returns an error for a run whose position is not the number of runs before it. The coordinator uses
// positions as indexes.
absl::Status CheckPosition(const ArchiveTable& table, const ArchiveRow& row, int64_t runs_before) {
  if (std::string_view(table.name) != "run") return absl::OkStatus();
  SCALELAB_RETURN_IF_ERROR(CheckNumbers(table, row, {"position"}));
  const int64_t position = At(table, row, "position").integer;
  if (position == runs_before) return absl::OkStatus();
  return Inconsistent(table, absl::StrCat("whose position is ", position, " instead of ", runs_before));
}

}  // namespace

absl::Status Renumbering::Refer(Numbered of, int64_t& id) const {
  if (id == 0) return absl::OkStatus();
  const auto& known = ids_[static_cast<size_t>(of)];
  const auto found = known.find(id);
  if (found == known.end()) return absl::DataLossError(absl::StrCat("id ", id));
  id = found->second;
  return absl::OkStatus();
}

absl::Status Renumbering::Apply(const ArchiveTable& table, ArchiveRow& row) {
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const ArchiveColumn& column = table.columns[i];
    Value& value = row.values[i];
    const bool numbered = column.change == Change::kNew || column.change == Change::kReference ||
                          column.change == Change::kHighBits;
    if (numbered && value.type != Value::Type::kInteger) return Inconsistent(table, "without a number");
    if (column.change == Change::kNew && column.of != Numbered::kSeries) {
      int64_t& next = next_[static_cast<size_t>(column.of)];
      if (!ids_[static_cast<size_t>(column.of)].emplace(value.integer, next).second)
        return Inconsistent(table, absl::StrCat("that comes twice: ", value.integer));
      if (column.of == Numbered::kStudy) study_ = next;
      value.integer = next++;
    } else if (column.change == Change::kReference) {
      if (!Refer(column.of, value.integer).ok())
        return Inconsistent(table,
                            absl::StrCat("whose ", column.name, " ", value.integer, " does not exist"));
    } else if (column.change == Change::kHighBits) {
      int64_t high = value.integer >> 32;
      if (!Refer(column.of, high).ok())
        return Inconsistent(table, absl::StrCat("whose ", column.name, " belongs to nothing"));
      value.integer = (high << 32) | (value.integer & 0xffffffff);
    }
  }
  return absl::OkStatus();
}

void Renumbering::SetSeries(int64_t old_id, int64_t new_id) {
  ids_[static_cast<size_t>(Numbered::kSeries)][old_id] = new_id;
}

absl::StatusOr<ArchiveHead> CheckArchive(int fd, int64_t most_bytes, const std::function<bool()>& over) {
  ArchiveReader reader(fd);
  SCALELAB_RETURN_IF_ERROR(reader.CheckWhole());
  SCALELAB_RETURN_IF_ERROR(reader.Begin(NewestSchema()));
  ArchiveHead head;
  FirstIds first;
  first.fill(1);
  Renumbering renumbering(first);
  ArchiveRow row;
  absl::StatusOr<bool> more = false;
  for (more = reader.Next(row); more.ok() && *more; more = reader.Next(row)) {
    if (reader.content_bytes() > most_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("the content of the archive has more than ",
                                                       most_bytes,
                                                       " bytes, which is the limit; nothing was stored"));
    }
    if (over != nullptr && over()) return absl::CancelledError("nobody waits for the archive any more");
    const ArchiveTable& table = ArchiveTables()[row.table];
    if ((row.table == 0) != (renumbering.given(Numbered::kStudy) == 0))
      return Inconsistent(table, "in the wrong place");
    if (row.table == 0) SCALELAB_RETURN_IF_ERROR(ReadStudy(table, row, head.study));
    SCALELAB_RETURN_IF_ERROR(CheckState(table, row));
    SCALELAB_RETURN_IF_ERROR(CheckPosition(table, row, renumbering.given(Numbered::kRun)));
    const int64_t id = row.values[0].integer;
    SCALELAB_RETURN_IF_ERROR(renumbering.Apply(table, row));
    if (table.columns[0].of == Numbered::kSeries && table.columns[0].change == Change::kNew)
      renumbering.SetSeries(id, id);
  }
  if (!more.ok()) return more.status();
  for (int of = 0; of < kNumbered; ++of)
    head.ids[static_cast<size_t>(of)] = renumbering.given(static_cast<Numbered>(of));
  if (head.ids[static_cast<size_t>(Numbered::kStudy)] != 1 ||
      head.study.runs != head.ids[static_cast<size_t>(Numbered::kRun)])
    return Inconsistent(ArchiveTables()[0], "without all of its runs");
  head.content_bytes = reader.content_bytes();
  head.seal = reader.seal();
  head.sealed = reader.sealed();
  return head;
}

}  // namespace scalelab::db
