#include "server/services/lookup.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "db/retention/retention.h"
#include "proto/status.h"
#include "server/cells/cells.h"
#include "server/core/convert.h"
#include "server/identity/permissions.h"

namespace scalelab::server {
namespace {

absl::Status NoStudy(absl::string_view name) {
  return MakeError(absl::StatusCode::kNotFound, "STUDY_NOT_FOUND",
                   absl::StrCat("there is no study '", name, "'; `scalelab study list` shows all studies"));
}

absl::Status NoRun(absl::string_view name) {
  return MakeError(
      absl::StatusCode::kNotFound, "RUN_NOT_FOUND",
      absl::StrCat("there is no run '", name, "'; `scalelab run list STUDY` shows all runs of a study"));
}

// Returns NOT_FOUND, without a message, for a study that the caller may not see.
absl::Status CheckVisible(ClientCall& call, const db::StudyRow& study) {
  if (MaySee(call.caller(), study)) return absl::OkStatus();
  call.SetHidden();
  return absl::NotFoundError("");
}

// Finds a run, and its study without the specification.
absl::StatusOr<std::pair<db::RunRow, db::StudyRow>> FindBoth(db::Store& store, ClientCall& call,
                                                             const std::string& name) {
  const size_t slash = name.rfind('/');
  int64_t id = 0;
  if (!absl::SimpleAtoi(slash == std::string::npos ? name : name.substr(slash + 1), &id)) return NoRun(name);
  absl::StatusOr<db::RunRow> run = store.GetRun(id);
  if (!run.ok()) return absl::IsNotFound(run.status()) ? NoRun(name) : run.status();
  const bool full = slash != std::string::npos && name.rfind("studies/", 0) == 0;
  if (full && RunName(run->study_id, id) != name) return NoRun(name);
  absl::StatusOr<db::StudyRow> study = store.GetStudyHead(run->study_id);
  if (study.ok()) {
    call.SetTarget(RunName(run->study_id, id));
    if (!CheckVisible(call, *study).ok()) return NoRun(name);
    return std::pair(*std::move(run), *std::move(study));
  }
  return absl::IsNotFound(study.status()) ? NoRun(name) : study.status();
}

// Returns NOT_FOUND if `what` of an attempt that ended at `ended` was removed at `removed`.
absl::Status CheckKept(const char* what, db::Micros ended, db::Micros removed, const db::RunRow& run) {
  if (ended == 0 || ended > removed) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kNotFound, "REMOVED_BY_RETENTION",
      absl::StrCat("the ", what, " of ", RunName(run.study_id, run.id), " were removed by retention on ",
                   absl::FormatTime("%Y-%m-%d", absl::FromUnixMicros(removed), absl::UTCTimeZone()),
                   "; its results remain: `scalelab run show ", run.id, "`"));
}

// Returns the error for cells that could not be read. The study may have been deleted since the caller found it.
absl::Status Lost(db::Store& store, int64_t study_id, const absl::Status& why) {
  if (absl::IsNotFound(store.GetStudyHead(study_id).status())) return NoStudy(absl::StrCat(study_id));
  return absl::DataLossError(absl::StrCat("the database lacks a cell of ", StudyName(study_id), " (",
                                          why.message(),
                                          "); restore a backup, see docs/operators/backup.md"));
}

}  // namespace

absl::StatusOr<db::StudyRow> FindStudy(db::Store& store, ClientCall& call, const std::string& name) {
  absl::string_view part = name;
  absl::ConsumePrefix(&part, "studies/");
  absl::StatusOr<db::StudyRow> found = absl::NotFoundError("");
  int64_t id = 0;
  const db::Viewer viewer = ViewerOf(call.caller());
  if (part == "last") {
    const auto newest = store.ListStudies(0, 1, viewer);
    if (!newest.ok()) return newest.status();
    if (!newest->empty()) found = store.GetStudy(newest->front().id);
  } else if (absl::SimpleAtoi(part, &id)) {
    found = store.GetStudy(id);
  } else if (!part.empty()) {
    found = store.FindStudy(std::string(part), viewer);
  }
  if (found.ok()) {
    call.SetTarget(StudyName(found->id));
    if (absl::Status visible = CheckVisible(call, *found); !visible.ok()) found = visible;
  }
  return absl::IsNotFound(found.status()) ? NoStudy(part) : found;
}

absl::StatusOr<db::RunRow> FindRun(db::Store& store, ClientCall& call, const std::string& name) {
  auto found = FindBoth(store, call, name);
  if (!found.ok()) return found.status();
  return std::move(found->first);
}

absl::StatusOr<db::StudyRow> FindStudyToControl(db::Store& store, ClientCall& call, const std::string& name) {
  absl::StatusOr<db::StudyRow> study = FindStudy(store, call, name);
  if (!study.ok()) return study;
  if (absl::Status s = MayControl(call.caller(), *study); !s.ok()) return s;
  return study;
}

absl::StatusOr<db::RunRow> FindRunToControl(db::Store& store, ClientCall& call, const std::string& name) {
  auto found = FindBoth(store, call, name);
  if (!found.ok()) return found.status();
  if (absl::Status s = MayControl(call.caller(), found->second); !s.ok()) return s;
  return std::move(found->first);
}

FoundCells::FoundCells(const std::vector<int64_t>& ids, CellList cells) : cells_(std::move(cells)) {
  for (size_t i = 0; i < ids.size(); ++i) index_.emplace(ids[i], i);
}

absl::StatusOr<FoundCells> FindCells(db::Store& store, int64_t study_id, const std::set<int64_t>& ids) {
  const std::vector<int64_t> wanted(ids.begin(), ids.end());
  const auto rows = store.GetCells(wanted);
  if (absl::IsNotFound(rows.status())) return Lost(store, study_id, rows.status());
  if (!rows.ok()) return rows.status();
  const auto values = store.GetCellValues(study_id, NumbersOf(*rows));
  if (absl::IsNotFound(values.status())) return Lost(store, study_id, values.status());
  if (!values.ok()) return values.status();
  absl::StatusOr<CellList> cells = ReadCells(*values, *rows);
  if (!cells.ok()) return cells.status();
  return FoundCells(wanted, *std::move(cells));
}

absl::Status CheckPointsKept(db::Store& store, const db::RunRow& run, const db::AttemptRow& attempt) {
  const auto removed = db::GetRemoved(store, run.study_id);
  if (!removed.ok()) return removed.status();
  return CheckKept("points", attempt.finished, removed->points, run);
}

absl::Status CheckLogsKept(db::Store& store, const db::RunRow& run, const db::AttemptRow& attempt) {
  if (attempt.directory.empty()) {
    return MakeError(absl::StatusCode::kNotFound, "NOT_IN_ARCHIVE",
                     absl::StrCat(RunName(run.study_id, run.id),
                                  " was restored from an archive, and archives have no logs; its results and "
                                  "points are there: `scalelab run show ",
                                  run.id, "`"));
  }
  const auto removed = db::GetRemoved(store, run.study_id);
  if (!removed.ok()) return removed.status();
  return CheckKept("logs", attempt.finished, std::max(removed->logs, removed->directories), run);
}

absl::StatusOr<db::AttemptRow> FindAttempt(db::Store& store, const db::RunRow& run, int number) {
  const auto attempts = store.ListAttempts(run.id);
  if (!attempts.ok()) return attempts.status();
  if (number == 0 && !attempts->empty()) return attempts->back();
  for (const db::AttemptRow& attempt : *attempts) {
    if (attempt.number == number) return attempt;
  }
  return MakeError(absl::StatusCode::kNotFound, "ATTEMPT_NOT_FOUND",
                   attempts->empty() ? absl::StrCat(RunName(run.study_id, run.id), " has not started yet")
                                     : absl::StrCat(RunName(run.study_id, run.id), " has attempts 1 to ",
                                                    attempts->size(), ", not ", number));
}

}  // namespace scalelab::server
