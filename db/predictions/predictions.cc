#include "db/predictions/predictions.h"

#include <set>

#include "db/columns.h"
#include "db/sqlite/return_if_error.h"
#include "db/sqlite/sqlite.h"

namespace scalelab::db {

template <>
struct Table<PredictionRow> {
  static constexpr char kName[] = "prediction", kKey[] = "id", kParent[] = "";
  static constexpr char kColumns[] =
      "id,study_id,cell_id,source_id,study_name,owner,private,key,fingerprint,models,ranks,largest,predicted,"
      "low,"
      "high,state,reason,measured,measured_low,measured_high,created,scored";
};
template <RowOf<PredictionRow> R>
auto Members(R& r) {
  return std::tie(r.id, r.study_id, r.cell_id, r.source_id, r.study_name, r.owner, r.is_private, r.key,
                  r.fingerprint, r.models, r.ranks, r.largest, r.predicted, r.low, r.high, r.state, r.reason,
                  r.measured, r.measured_low, r.measured_high, r.created, r.scored);
}

namespace {

// An SQL condition for the predictions that a filter selects. Parameters: 1 if the viewer may see all
// predictions, the viewer's name, the study (0: all).
constexpr char kVisible[] = "(?1 OR private = 0 OR owner = ?2) AND (?3 = 0 OR study_id = ?3)";

// Returns the cells that have a run that has begun, or a run that was cancelled before it began.
absl::StatusOr<std::set<int64_t>> BegunCells(Database& db, int64_t study_id) {
  std::set<int64_t> cells;
  Statement all(db, "SELECT DISTINCT cell_id FROM run WHERE study_id = ? AND (state <> 1 OR attempts > 0)");
  all.Bind(study_id);
  while (all.Step()) {
    int64_t cell = 0;
    all.Read(cell);
    cells.insert(cell);
  }
  if (!all.status().ok()) return all.status();
  return cells;
}

// Inserts the row, unless its cell was deleted or has a prediction from the same source. Returns
// the stored row.
absl::StatusOr<std::optional<PredictionRow>> Insert(Database& db, const PredictionRow& row) {
  SCALELAB_RETURN_IF_ERROR(
      Statement(
          db,
          "INSERT INTO prediction "
          "(study_id,cell_id,source_id,study_name,owner,private,key,fingerprint,models,"
          "ranks,largest,predicted,low,high,state,reason,created,scored) SELECT "
          "?,?,?,?,?,?,?,?,?,?,?,?,?,?,1,'',?,0 WHERE EXISTS (SELECT 1 FROM cell WHERE id = ?2) ON CONFLICT "
          "(cell_id, source_id) DO NOTHING")
          .Run(row.study_id, row.cell_id, row.source_id, row.study_name, row.owner, row.is_private, row.key,
               row.fingerprint, row.models, row.ranks, row.largest, row.predicted, row.low, row.high,
               row.created));
  static const std::string sql = SelectSql<PredictionRow>("WHERE cell_id = ? AND source_id = ?");
  Statement one(db, sql.c_str());
  one.Bind(row.cell_id, row.source_id);
  std::optional<PredictionRow> stored;
  if (one.Step()) stored = ReadRow<PredictionRow>(one);
  if (!one.status().ok()) return one.status();
  return stored;
}

// Returns the rows that `sql` selects with `values` as its parameters.
template <class... Values>
absl::StatusOr<std::vector<PredictionRow>> ReadPredictions(Store& store, const std::string& sql,
                                                           const Values&... values) {
  std::vector<PredictionRow> rows;
  const absl::Status status = store.ReadRows([&](Database& db) {
    Statement all(db, sql.c_str());
    all.Bind(values...);
    while (all.Step()) rows.push_back(ReadRow<PredictionRow>(all));
    return all.status();
  });
  if (!status.ok()) return status;
  return rows;
}

}  // namespace

absl::StatusOr<std::vector<std::optional<PredictionRow>>> AddPredictions(
    Store& store, const std::vector<PredictionRow>& rows) {
  std::vector<std::optional<PredictionRow>> stored(rows.size());
  if (rows.empty()) return stored;
  const absl::Status status = store.WriteRows([&](Database& db) -> absl::Status {
    const auto begun = BegunCells(db, rows.front().study_id);
    if (!begun.ok()) return begun.status();
    for (size_t i = 0; i < rows.size(); ++i) {
      if (begun->contains(rows[i].cell_id)) continue;
      auto row = Insert(db, rows[i]);
      if (!row.ok()) return row.status();
      stored[i] = *std::move(row);
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return stored;
}

absl::StatusOr<std::vector<PredictionRow>> ListPredictionsToScore(Store& store, int limit) {
  static const std::string sql = SelectSql<PredictionRow>(
      "WHERE state = 1 AND NOT EXISTS (SELECT 1 FROM run WHERE run.study_id = prediction.study_id AND "
      "run.cell_id = prediction.cell_id AND run.state < 3) LIMIT ?");
  return ReadPredictions(store, sql, limit);
}

absl::Status SetPredictionScore(Store& store, const PredictionRow& row) {
  return store.WriteRows([&](Database& db) {
    return Statement(db,
                     "UPDATE prediction SET state = ?, reason = ?, measured = ?, measured_low = ?, "
                     "measured_high = ?, "
                     "scored = ? WHERE id = ? AND state = 1")
        .Run(row.state, row.reason, row.measured, row.measured_low, row.measured_high, row.scored, row.id);
  });
}

absl::StatusOr<std::vector<PredictionRow>> ListPredictions(Store& store, const PredictionFilter& filter,
                                                           int64_t before, int limit) {
  static const std::string sql =
      SelectSql<PredictionRow>("WHERE ") + kVisible + " AND (?4 = 0 OR id < ?4) ORDER BY id DESC LIMIT ?5";
  return ReadPredictions(store, sql, filter.viewer.all, filter.viewer.user, filter.study_id, before, limit);
}

absl::StatusOr<std::vector<PredictionRow>> ListScoredPredictions(Store& store, int limit) {
  static const std::string sql =
      SelectSql<PredictionRow>("WHERE state = 2 AND private = 0 ORDER BY id DESC LIMIT ?");
  return ReadPredictions(store, sql, limit);
}

absl::StatusOr<std::vector<BucketMetricRow>> ListBucketMetrics(Store& store, int64_t study_id, int repeats) {
  std::vector<BucketMetricRow> rows;
  const absl::Status status = store.ReadRows([&](Database& db) {
    Statement all(
        db,
        "SELECT u.attempt_id, e.key, e.value FROM run r JOIN run_summary u ON u.run_id = r.id JOIN "
        "run_metrics m ON m.run_id = r.id, json_each(m.metrics) e WHERE r.study_id = ? AND "
        "r.repeat < ? AND e.key GLOB 'bucket/*' AND typeof(e.value) IN ('real', 'integer') ORDER BY "
        "u.attempt_id");
    all.Bind(study_id, repeats);
    while (all.Step()) {
      BucketMetricRow& row = rows.emplace_back();
      all.Read(row.attempt_id, row.name, row.value);
    }
    return all.status();
  });
  if (!status.ok()) return status;
  return rows;
}

absl::StatusOr<PredictionScores> ReadPredictionScores(Store& store, const PredictionFilter& filter) {
  PredictionScores scores;
  const absl::Status status = store.ReadRows([&](Database& db) {
    static const std::string sql =
        std::string(
            "SELECT state = 2, coalesce(predicted / measured - 1, 0), coalesce(measured BETWEEN low AND "
            "high, 0) FROM prediction WHERE ") +
        kVisible;
    Statement all(db, sql.c_str());
    all.Bind(filter.viewer.all, filter.viewer.user, filter.study_id);
    while (all.Step()) {
      bool scored = false, covered = false;
      double error = 0;
      all.Read(scored, error, covered);
      ++scores.predictions;
      if (!scored) continue;
      scores.errors.push_back(error);
      if (covered) ++scores.covered;
    }
    return all.status();
  });
  if (!status.ok()) return status;
  return scores;
}

}  // namespace scalelab::db
