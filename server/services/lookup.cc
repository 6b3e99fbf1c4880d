#include "server/services/lookup.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/status.h"
#include "server/core/cells.h"
#include "server/core/convert.h"

namespace scalelab::server {
namespace {

absl::Status NoStudy(absl::string_view name) {
  return MakeError(absl::StatusCode::kNotFound, "STUDY_NOT_FOUND",
                   absl::StrCat("there is no study '", name, "'; `scalelab study list` shows all studies"));
}

}  // namespace

absl::StatusOr<db::StudyRow> FindStudy(db::Store& store, const std::string& name) {
  absl::string_view part = name;
  absl::ConsumePrefix(&part, "studies/");
  absl::StatusOr<db::StudyRow> found = absl::NotFoundError("");
  int64_t id = 0;
  if (part == "last") {
    const auto newest = store.ListStudies(0, 1);
    if (!newest.ok()) return newest.status();
    if (!newest->empty()) found = store.GetStudy(newest->front().id);
  } else if (absl::SimpleAtoi(part, &id)) {
    found = store.GetStudy(id);
  } else if (!part.empty()) {
    found = store.FindStudy(std::string(part));
  }
  return absl::IsNotFound(found.status()) ? NoStudy(part) : found;
}

absl::StatusOr<db::RunRow> FindRun(db::Store& store, const std::string& name) {
  const size_t slash = name.rfind('/');
  const std::string last = slash == std::string::npos ? name : name.substr(slash + 1);
  int64_t id = 0;
  absl::StatusOr<db::RunRow> found = absl::NotFoundError("");
  if (absl::SimpleAtoi(last, &id)) found = store.GetRun(id);
  const bool full = slash != std::string::npos && name.rfind("studies/", 0) == 0;
  if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
  if (!found.ok() || (full && RunName(found->study_id, id) != name)) {
    return MakeError(
        absl::StatusCode::kNotFound, "RUN_NOT_FOUND",
        absl::StrCat("there is no run '", name, "'; `scalelab run list STUDY` shows all runs of a study"));
  }
  return found;
}

FoundCells::FoundCells(const std::vector<int64_t>& ids, CellList cells) : cells_(std::move(cells)) {
  for (size_t i = 0; i < ids.size(); ++i) index_.emplace(ids[i], i);
}

absl::StatusOr<FoundCells> FindCells(db::Store& store, int64_t study_id, const std::set<int64_t>& ids) {
  const std::vector<int64_t> wanted(ids.begin(), ids.end());
  const auto rows = store.GetCells(wanted);
  if (absl::IsNotFound(rows.status())) {
    return absl::DataLossError(absl::StrCat("the database lacks a cell of ", StudyName(study_id), " (",
                                            rows.status().message(),
                                            "); restore a backup, see docs/operators/backup.md"));
  }
  if (!rows.ok()) return rows.status();
  const auto values = store.GetCellValues(study_id, NumbersOf(*rows));
  if (!values.ok()) return values.status();
  absl::StatusOr<CellList> cells = ReadCells(*values, *rows);
  if (!cells.ok()) return cells.status();
  return FoundCells(wanted, *std::move(cells));
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
