#include <string_view>

#include "absl/strings/str_cat.h"
#include "db/archive/archive.h"
#include "db/point_writer.h"
#include "db/sqlite/return_if_error.h"
#include "db/sqlite_store.h"

namespace scalelab::db {
namespace {

// Limits of one transaction, which then takes some tens of milliseconds.
constexpr int kRows = 2000;
constexpr int64_t kBytes = 1 << 20;

// Tables with ids of their own, and the name of the counter of each.
constexpr std::pair<Numbered, const char*> kCounters[] = {{Numbered::kStudy, "study"},
                                                          {Numbered::kCell, "cell"},
                                                          {Numbered::kRun, "run"},
                                                          {Numbered::kAllocation, "allocation"},
                                                          {Numbered::kAttempt, "attempt"}};

size_t Index(Numbered of) { return static_cast<size_t>(of); }

// Whether the study of an archive is in the database. `deleted`: it is being deleted or restored.
struct Present {
  int64_t id = 0;  // 0: it is not there
  bool deleted = false;
};

absl::StatusOr<Present> FindPresent(Database& db, const StudyRow& study) {
  Statement find(db,
                 "SELECT id, EXISTS (SELECT 1 FROM deleted_study WHERE study_id = study.id) AS deleted FROM "
                 "study WHERE name = ? AND owner = ? AND created = ? ORDER BY deleted LIMIT 1");
  find.Bind(study.name, study.owner, study.created);
  Present present;
  if (find.Step()) find.Read(present.id, present.deleted);
  SCALELAB_RETURN_IF_ERROR(find.status());
  return present;
}

absl::Status CheckAbsent(Database& db, const StudyRow& study) {
  const absl::StatusOr<Present> present = FindPresent(db, study);
  if (!present.ok()) return present.status();
  if (present->id == 0) return absl::OkStatus();
  if (!present->deleted) {
    return absl::AlreadyExistsError(absl::StrCat("the study of the archive is there, as studies/",
                                                 present->id, "; delete that one first to replace it"));
  }
  return absl::UnavailableError(
      "the study of the archive is being deleted, or restored by another call; try again in a minute");
}

void SetText(Value& value, std::string text) {
  value.type = Value::Type::kText;
  value.bytes = std::move(text);
}

void SetInteger(Value& value, int64_t number) {
  value.type = Value::Type::kInteger;
  value.integer = number;
}

// The restored study does not send the notifications that were pending in the archive.
void GiveUpPending(const ArchiveTable& table, ArchiveRow& row) {
  Value& state = row.values[ColumnIndex(table, "state")];
  if (state.integer != static_cast<int64_t>(NoticeRow::State::kPending)) return;
  SetInteger(state, static_cast<int64_t>(NoticeRow::State::kGivenUp));
  SetText(row.values[ColumnIndex(table, "error")],
          "the study was archived before this notification was sent");
}

}  // namespace

absl::StatusOr<int64_t> FindArchived(Store& store, const StudyRow& study) {
  Present present;
  const absl::Status status = store.ReadRows([&](Database& db) -> absl::Status {
    const absl::StatusOr<Present> found = FindPresent(db, study);
    if (found.ok()) present = *found;
    return found.status();
  });
  if (!status.ok()) return status;
  return present.deleted ? 0 : present.id;
}

absl::StatusOr<std::optional<Origin>> GetOrigin(Store& store, int64_t study_id) {
  std::optional<Origin> origin;
  const absl::Status status = store.ReadRows([&](Database& db) -> absl::Status {
    Statement find(
        db, "SELECT server, study, sha256, imported_by, imported FROM study_origin WHERE study_id = ?");
    find.Bind(study_id);
    if (find.Step()) {
      Origin& found = origin.emplace();
      find.Read(found.server, found.study, found.sha256, found.imported_by, found.imported);
    }
    return find.status();
  });
  if (!status.ok()) return status;
  return origin;
}

Restore::Restore(Store& store, int fd, ArchiveHead head, const FirstIds& first, std::optional<Origin> origin)
    : store_(store),
      head_(std::move(head)),
      first_(first),
      origin_(std::move(origin)),
      reader_(fd),
      renumbering_(first) {}

Restore::~Restore() {
  if (began_) store_.StopKeeping(study_id());
}

absl::StatusOr<bool> Restore::Step() {
  if (!began_) {
    SCALELAB_RETURN_IF_ERROR(reader_.CheckWhole());
    SCALELAB_RETURN_IF_ERROR(reader_.Begin(NewestSchema()));
    store_.KeepInvisible(study_id());
  }
  const absl::Status status = store_.WriteRows([this](Database& db) -> absl::Status {
    if (!began_) SCALELAB_RETURN_IF_ERROR(Begin(db));
    SCALELAB_RETURN_IF_ERROR(read_all_ ? Finish(db) : WriteSome(db));
    return absl::OkStatus();
  });
  began_ = true;
  if (!status.ok()) return status;
  return !done_;
}

absl::Status Restore::Begin(Database& db) {
  SCALELAB_RETURN_IF_ERROR(CheckAbsent(db, head_.study));
  for (const auto& [of, name] : kCounters) {
    // Raise the counters in the first transaction, so that no id is used twice even if the restore
    // does not end.
    if (head_.ids[Index(of)] == 0) continue;
    SCALELAB_RETURN_IF_ERROR(
        Statement(db,
                  "INSERT INTO counter (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = "
                  "max(value, excluded.value)")
            .Run(name, first_[Index(of)] + head_.ids[Index(of)] - 1));
  }
  return Statement(db, "INSERT INTO deleted_study (study_id) VALUES (?)").Run(study_id());
}

absl::Status Restore::WriteSome(Database& db) {
  ArchiveRow row;
  const int64_t until = reader_.content_bytes() + kBytes;
  for (int rows = 0; rows < kRows && reader_.content_bytes() < until; ++rows) {
    const absl::StatusOr<bool> more = reader_.Next(row);
    if (!more.ok()) return more.status();
    read_all_ = !*more;
    if (read_all_) break;
    SCALELAB_RETURN_IF_ERROR(WriteRow(db, row));
  }
  return absl::OkStatus();
}

absl::Status Restore::WriteRow(Database& db, ArchiveRow& row) {
  const ArchiveTable& table = ArchiveTables()[row.table];
  const bool series = table.columns[0].change == Change::kNew && table.columns[0].of == Numbered::kSeries;
  const int64_t old_id = row.values[0].integer;
  SCALELAB_RETURN_IF_ERROR(renumbering_.Apply(table, row));
  if (series) row.values[0].type = Value::Type::kNull;
  for (size_t i = 0; i < row.values.size(); ++i) {
    Value& value = row.values[i];
    switch (table.columns[i].change) {
      case Change::kNull:
        value.type = Value::Type::kNull;
        break;
      case Change::kEmpty:
        SetText(value, "");
        break;
      case Change::kNoticeKey:
        SetText(value, absl::StrCat("restored/", study_id(), "/", value.bytes));
        break;
      case Change::kMetricName: {
        const absl::StatusOr<int64_t> key = MetricKeyId(db, value.bytes);
        if (!key.ok()) return key.status();
        SetInteger(value, *key);
        break;
      }
      default:
        break;
    }
  }
  const std::string_view name = table.name;
  if (name == "notice") GiveUpPending(table, row);
  if (name == "run") {
    const auto state = static_cast<size_t>(row.values[ColumnIndex(table, "state")].integer);
    ++runs_.at(state);  // CheckArchive has checked it
  }
  Statement insert(db, table.insert.c_str());
  for (size_t i = 0; i < row.values.size(); ++i) insert.BindValue(static_cast<int>(i) + 1, row.values[i]);
  if (absl::Status status = insert.Run(); absl::IsAlreadyExists(status)) {
    return absl::UnavailableError(
        absl::StrCat("a row of table ", table.name,
                     " of the study is there: one of its jobs has not ended yet; "
                     "try again when `scalelab cluster` does not show it any more"));
  } else if (!status.ok()) {
    return status;
  }
  if (series) renumbering_.SetSeries(old_id, sqlite3_last_insert_rowid(db.handle()));
  return absl::OkStatus();
}

absl::Status Restore::Finish(Database& db) {
  for (size_t state = 0; state < runs_.size(); ++state) {
    if (runs_[state] == 0) continue;
    SCALELAB_RETURN_IF_ERROR(Statement(db, "INSERT INTO run_count (study_id, state, runs) VALUES (?, ?, ?)")
                                 .Run(study_id(), state, runs_[state]));
  }
  if (origin_.has_value()) {
    SCALELAB_RETURN_IF_ERROR(Statement(db,
                                       "INSERT OR REPLACE INTO study_origin (study_id, server, study, "
                                       "sha256, imported_by, imported) VALUES "
                                       "(?, ?, ?, ?, ?, ?)")
                                 .Run(study_id(), origin_->server, origin_->study, origin_->sha256,
                                      origin_->imported_by, origin_->imported));
  }
  const int64_t first_run = first_[Index(Numbered::kRun)];
  SCALELAB_RETURN_IF_ERROR(Statement(db, "UPDATE study SET first_run_id = ?, last_run_id = ? WHERE id = ?")
                               .Run(first_run, first_run + head_.ids[Index(Numbered::kRun)] - 1, study_id()));
  SCALELAB_RETURN_IF_ERROR(Statement(db, "DELETE FROM deleted_study WHERE study_id = ?").Run(study_id()));
  done_ = true;
  return absl::OkStatus();
}

}  // namespace scalelab::db
