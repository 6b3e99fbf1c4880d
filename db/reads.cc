#include "db/reads.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "db/chunks.h"
#include "db/columns.h"
#include "db/deletion.h"
#include "db/point_codec.h"
#include "db/usage.h"

namespace scalelab::db {
namespace {

template <class Row, class... Parameters>
absl::StatusOr<std::vector<Row>> All(Database& db, const std::string& sql, const Parameters&... parameters) {
  std::vector<Row> rows;
  Statement statement(db, sql.c_str());
  statement.Bind(parameters...);
  while (statement.Step()) rows.push_back(ReadRow<Row>(statement));
  if (!statement.status().ok()) return statement.status();
  return rows;
}

template <class Row, class... Parameters>
absl::StatusOr<Row> One(Database& db, const std::string& what, const std::string& sql,
                        const Parameters&... parameters) {
  Statement statement(db, sql.c_str());
  statement.Bind(parameters...);
  const bool found = statement.Step();
  Row row;
  if (found) row = ReadRow<Row>(statement);
  if (!statement.status().ok()) return statement.status();
  if (found) return row;
  return absl::NotFoundError(absl::StrCat("There is no ", what));
}

template <class Row>
absl::Status Move(absl::StatusOr<std::vector<Row>> from, std::vector<Row>& to) {
  if (!from.ok()) return from.status();
  if (to.empty())
    to = std::move(*from);
  else
    to.insert(to.end(), std::make_move_iterator(from->begin()), std::make_move_iterator(from->end()));
  return absl::OkStatus();
}

absl::Status ReadServiceState(Database& db, ServiceState& service) {
  static const std::string usage = SelectSql<UsageRow>("ORDER BY owner");
  static const std::string hours = SelectSql<UsageHourRow>("ORDER BY owner, partition, hour");
  static const std::string drain = SelectSql<DrainRow>("");
  std::vector<DrainRow> drains;
  absl::Status status = Move(All<UsageRow>(db, usage), service.usage);
  if (status.ok()) status = Move(All<UsageHourRow>(db, hours), service.usage_hours);
  if (status.ok()) status = Move(All<DrainRow>(db, drain), drains);
  if (!drains.empty()) service.drain = drains.front();
  return status;
}

// Reads the rows that belong to the studies and allocations of the snapshot.
absl::Status ReadRowsOfStudies(Database& db, Snapshot& snapshot) {
  static const std::string values = SelectSql<CellValueRow>("WHERE id BETWEEN ? AND ? ORDER BY id");
  static const std::string cells = SelectSql<CellRow>("WHERE study_id = ? ORDER BY position");
  static const std::string runs = SelectSql<RunRow>("WHERE study_id = ? ORDER BY position");
  static const std::string attempts = SelectSql<AttemptRow>(
      "WHERE state < 4 AND run_id IN (SELECT id FROM run WHERE study_id = ?) ORDER BY id");
  static const std::string streams = SelectSql<StreamRow>("WHERE attempt_id = ? ORDER BY rank");
  static const std::string provenance = SelectSql<ProvenanceRow>("WHERE attempt_id = ?");
  static const std::string noisy = absl::StrCat(
      "SELECT run_id, count(*) FROM attempt WHERE state = ", static_cast<int>(AttemptState::kFailed),
      " AND cause = ", static_cast<int>(Cause::kNoisy),
      " AND run_id IN (SELECT id FROM run WHERE study_id = ?) GROUP BY run_id");
  absl::Status status;
  for (const StudyRow& study : snapshot.studies) {
    const int64_t first = CellValueId(study.id, 0), last = CellValueId(study.id, kMaxCellValue);
    if (status.ok()) status = Move(All<CellValueRow>(db, values, first, last), snapshot.cell_values);
    if (status.ok()) status = Move(All<CellRow>(db, cells, study.id), snapshot.cells);
    if (status.ok()) status = Move(All<RunRow>(db, runs, study.id), snapshot.runs);
    if (status.ok()) status = Move(All<AttemptRow>(db, attempts, study.id), snapshot.attempts);
    Statement counts(db, noisy.c_str());
    counts.Bind(study.id);
    while (status.ok() && counts.Step()) {
      int64_t run = 0;
      int count = 0;
      counts.Read(run, count);
      snapshot.noisy_attempts[run] = count;
    }
    if (status.ok()) status = counts.status();
  }
  for (const AttemptRow& attempt : snapshot.attempts) {
    if (status.ok()) status = Move(All<StreamRow>(db, streams, attempt.id), snapshot.streams);
    if (status.ok()) status = Move(All<ProvenanceRow>(db, provenance, attempt.id), snapshot.provenance);
  }
  if (status.ok()) status = ReadUseOfAllocations(db, snapshot);
  return status;
}

}  // namespace

absl::StatusOr<Snapshot> Load(Database& db) {
  // Without the +, SQLite would scan all rows in the order of ids. With it, SQLite uses the index of
  // the open rows.
  static const std::string studies =
      SelectSql<StudyRow>("WHERE state < 3 AND" SCALELAB_VISIBLE_STUDY("study.id") "ORDER BY +id");
  // Also read the allocations of deleted studies, because their jobs must be ended.
  static const std::string allocations = SelectSql<AllocationRow>("WHERE state < 5 ORDER BY +id");
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  Snapshot snapshot;
  absl::Status status = Move(All<StudyRow>(db, studies), snapshot.studies);
  if (status.ok()) status = Move(All<AllocationRow>(db, allocations), snapshot.allocations);
  if (status.ok()) status = ReadRowsOfStudies(db, snapshot);
  if (status.ok()) status = ReadServiceState(db, snapshot.service);
  // A restored attempt has no directory. It may have run on other machines whose nodes have the same names.
  static const std::string newest = SelectSql<ProvenanceRow>(
      "WHERE attempt_id > 0 AND EXISTS (SELECT 1 FROM attempt a WHERE a.id = provenance.attempt_id AND "
      "a.directory <> '') ORDER BY attempt_id DESC LIMIT 1000");
  if (status.ok()) status = Move(All<ProvenanceRow>(db, newest), snapshot.newest_provenance);
  if (!status.ok()) return status;

  Statement counters(db, "SELECT name, value FROM counter");
  while (counters.Step()) {
    std::string name;
    int64_t value = 0;
    counters.Read(name, value);
    if (name == "study") snapshot.last_study_id = value;
    if (name == "cell") snapshot.last_cell_id = value;
    if (name == "run") snapshot.last_run_id = value;
    if (name == "attempt") snapshot.last_attempt_id = value;
    if (name == "allocation") snapshot.last_allocation_id = value;
  }
  if (!counters.status().ok()) return counters.status();
  return snapshot;
}

absl::StatusOr<Snapshot> LoadStudy(Database& db, int64_t id) {
  static const std::string allocations =
      SelectSql<AllocationRow>("WHERE study_id = ? AND state < 5 ORDER BY id");
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  Snapshot snapshot;
  absl::StatusOr<StudyRow> study = GetStudy(db, id);
  if (!study.ok() && !absl::IsNotFound(study.status())) return study.status();
  if (study.ok()) snapshot.studies.push_back(*std::move(study));
  absl::Status status = Move(All<AllocationRow>(db, allocations, id), snapshot.allocations);
  if (status.ok()) status = ReadRowsOfStudies(db, snapshot);
  if (!status.ok()) return status;
  return snapshot;
}

absl::StatusOr<ServiceState> LoadServiceState(Database& db) {
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  ServiceState service;
  if (absl::Status status = ReadServiceState(db, service); !status.ok()) return status;
  return service;
}

absl::StatusOr<std::string> GetProvenance(Database& db, int64_t attempt_id) {
  Statement provenance(db, "SELECT json FROM provenance WHERE attempt_id = ?");
  provenance.Bind(attempt_id);
  std::string json;
  if (provenance.Step()) provenance.Read(json);
  if (!provenance.status().ok()) return provenance.status();
  return json;
}

absl::StatusOr<StudyRow> GetStudy(Database& db, int64_t id) {
  static const std::string sql = SelectSql<StudyRow>("WHERE id = ? AND" SCALELAB_VISIBLE_STUDY("study.id"));
  return One<StudyRow>(db, absl::StrCat("study ", id), sql, id);
}

// Returns the columns of a study without the specification: SQLite reads its pages only for a query that names it.
static std::string HeadSql(const char* rest) {
  return absl::StrReplaceAll(SelectSql<StudyRow>(rest), {{",spec,", ",'',"}});
}

absl::StatusOr<StudyRow> GetStudyHead(Database& db, int64_t id) {
  static const std::string sql = HeadSql("WHERE id = ? AND" SCALELAB_VISIBLE_STUDY("study.id"));
  return One<StudyRow>(db, absl::StrCat("study ", id), sql, id);
}

absl::StatusOr<StudyRow> FindStudy(Database& db, const std::string& name, const Viewer& viewer) {
  static const std::string sql =
      SelectSql<StudyRow>("WHERE name = ? AND (private = 0 OR ? OR owner = ?) AND" SCALELAB_VISIBLE_STUDY(
          "study.id") "ORDER BY id DESC LIMIT 1");
  return One<StudyRow>(db, absl::StrCat("study named \"", name, "\""), sql, name, viewer.all, viewer.user);
}

absl::StatusOr<StudyRow> FindRequest(Database& db, const std::string& owner, const std::string& request_id) {
  // The condition request_id <> '' lets SQLite use the partial index.
  static const std::string sql =
      SelectSql<StudyRow>("WHERE owner = ? AND request_id = ? AND request_id <> ''");
  return One<StudyRow>(db, absl::StrCat("study of request \"", request_id, "\" by ", owner), sql, owner,
                       request_id);
}

absl::StatusOr<std::vector<StudyRow>> ListStudies(Database& db, int64_t before, int limit,
                                                  const Viewer& viewer) {
  static const std::string sql =
      HeadSql("WHERE id < ? AND (private = 0 OR ? OR owner = ?) AND" SCALELAB_VISIBLE_STUDY(
          "study.id") "ORDER BY id DESC LIMIT ?");
  return All<StudyRow>(db, sql, before == 0 ? INT64_MAX : before, viewer.all, viewer.user,
                       std::max(limit, 0));
}

absl::StatusOr<std::vector<std::vector<int64_t>>> CountRuns(Database& db,
                                                            const std::vector<int64_t>& study_ids) {
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  std::vector<std::vector<int64_t>> counts;
  Statement states(db, "SELECT state, runs FROM run_count WHERE study_id = ?");
  for (int64_t study_id : study_ids) {
    std::vector<int64_t> count(static_cast<size_t>(LastOf(RunState())) + 1);
    states.Bind(study_id);
    while (states.Step()) {
      RunState state{};
      int64_t runs = 0;
      states.Read(state, runs);
      count[static_cast<size_t>(state)] = runs;
    }
    if (!states.status().ok()) return states.status();
    states.Reset();
    counts.push_back(std::move(count));
  }
  return counts;
}

absl::StatusOr<std::vector<CellRow>> ListCells(Database& db, int64_t study_id) {
  static const std::string sql =
      SelectSql<CellRow>("WHERE study_id = ?1 AND" SCALELAB_VISIBLE_STUDY("?1") "ORDER BY position");
  return All<CellRow>(db, sql, study_id);
}

absl::StatusOr<std::vector<CellRow>> GetCells(Database& db, const std::vector<int64_t>& ids) {
  static const std::string sql =
      SelectSql<CellRow>("WHERE id = ? AND" SCALELAB_VISIBLE_STUDY("cell.study_id"));
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  std::vector<CellRow> cells;
  cells.reserve(ids.size());
  for (const int64_t id : ids) {
    absl::StatusOr<CellRow> cell = One<CellRow>(db, absl::StrCat("cell ", id), sql, id);
    if (!cell.ok()) return cell.status();
    cells.push_back(*std::move(cell));
  }
  return cells;
}

absl::StatusOr<std::vector<CellValueRow>> ListCellValues(Database& db, int64_t study_id) {
  static const std::string sql =
      SelectSql<CellValueRow>("WHERE id BETWEEN ?2 AND ?3 AND" SCALELAB_VISIBLE_STUDY("?1") "ORDER BY id");
  return All<CellValueRow>(db, sql, study_id, CellValueId(study_id, 0), CellValueId(study_id, kMaxCellValue));
}

absl::StatusOr<std::vector<CellValueRow>> GetCellValues(Database& db, int64_t study_id,
                                                        const std::vector<int>& numbers) {
  static const std::string sql = SelectSql<CellValueRow>("WHERE id = ?2 AND" SCALELAB_VISIBLE_STUDY("?1"));
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  std::vector<CellValueRow> values;
  for (const int number : numbers) {
    absl::Status status = Move(All<CellValueRow>(db, sql, study_id, CellValueId(study_id, number)), values);
    if (!status.ok()) return status;
  }
  return values;
}

absl::StatusOr<RunRow> GetRun(Database& db, int64_t id) {
  static const std::string sql = SelectSql<RunRow>("WHERE id = ? AND" SCALELAB_VISIBLE_STUDY("run.study_id"));
  return One<RunRow>(db, absl::StrCat("run ", id), sql, id);
}

absl::StatusOr<std::vector<RunRow>> ListRuns(Database& db, const RunFilter& filter) {
  static const std::string every = SelectSql<RunRow>(
      "WHERE study_id = ?1 AND position > ?2 AND" SCALELAB_VISIBLE_STUDY("?1") "ORDER BY position LIMIT ?3");
  static const std::string of_state =
      SelectSql<RunRow>("WHERE study_id = ?1 AND position > ?2 AND state = ?3 AND" SCALELAB_VISIBLE_STUDY(
          "?1") "ORDER BY position LIMIT ?4");
  const int limit = std::max(filter.limit, 0);
  if (!filter.state.has_value()) return All<RunRow>(db, every, filter.study_id, filter.after_position, limit);
  return All<RunRow>(db, of_state, filter.study_id, filter.after_position, *filter.state, limit);
}

absl::StatusOr<std::vector<AttemptRow>> ListAttempts(Database& db, int64_t run_id) {
  static const std::string sql =
      SelectSql<AttemptRow>("WHERE run_id = ?1 AND" SCALELAB_VISIBLE_RUN("?1") "ORDER BY number");
  return All<AttemptRow>(db, sql, run_id);
}

absl::StatusOr<AllocationRow> GetAllocation(Database& db, int64_t id) {
  static const std::string sql =
      SelectSql<AllocationRow>("WHERE id = ? AND" SCALELAB_VISIBLE_STUDY("allocation.study_id"));
  return One<AllocationRow>(db, absl::StrCat("allocation ", id), sql, id);
}

absl::StatusOr<std::vector<StreamRow>> ListStreams(Database& db, int64_t attempt_id) {
  static const std::string sql =
      SelectSql<StreamRow>("WHERE attempt_id = ?1 AND" SCALELAB_VISIBLE_ATTEMPT("?1") "ORDER BY rank");
  return All<StreamRow>(db, sql, attempt_id);
}

absl::StatusOr<RunSummary> GetSummary(Database& db, int64_t run_id) {
  static const std::string sql = SelectSql<RunSummary>("WHERE run_id = ?1 AND" SCALELAB_VISIBLE_RUN("?1"));
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  absl::StatusOr<RunSummary> summary =
      One<RunSummary>(db, absl::StrCat("result of run ", run_id), sql, run_id);
  if (!summary.ok()) return summary;
  Statement metrics(db, "SELECT metrics FROM run_metrics WHERE run_id = ?");
  metrics.Bind(run_id);
  if (metrics.Step()) metrics.Read(summary->metrics);
  if (!metrics.status().ok()) return metrics.status();
  return summary;
}

absl::StatusOr<std::vector<RunSummary>> ListSummaries(Database& db, int64_t first_run_id,
                                                      int64_t last_run_id) {
  static const std::string sql = SelectSql<RunSummary>(
      "WHERE run_id BETWEEN ? AND ? AND" SCALELAB_VISIBLE_RUN("run_id") "ORDER BY run_id");
  return All<RunSummary>(db, sql, first_run_id, last_run_id);
}

absl::Status RunRange(Database& db, int64_t study_id, int64_t& first, int64_t& last) {
  first = 0;
  last = -1;
  Statement range(
      db, "SELECT first_run_id, last_run_id FROM study WHERE id = ? AND" SCALELAB_VISIBLE_STUDY("study.id"));
  range.Bind(study_id);
  if (range.Step()) range.Read(first, last);
  return range.status();
}

namespace {

// Counts the attempts of the run of `row` by the reasons why they were repeated.
absl::Status CountRepeatedAttempts(Statement& attempts, CurveRow& row) {
  attempts.Reset();
  attempts.Bind(row.run_id);
  int64_t newest = 0;  // largest step from which a later attempt continued
  while (attempts.Step()) {
    AttemptState state = AttemptState::kAssigned;
    Cause cause = Cause::kNone;
    int64_t resumed = 0;
    attempts.Read(state, cause, resumed);
    const bool ended_from_outside = cause == Cause::kTimeout || cause == Cause::kPreempted;
    if (state == AttemptState::kCancelled) ++row.cancelled_attempts;
    if (state == AttemptState::kFailed && cause == Cause::kNoisy) ++row.noisy_attempts;
    if (state == AttemptState::kFailed && ended_from_outside && newest > resumed) ++row.continued_attempts;
    newest = std::max(newest, resumed);
  }
  return attempts.status();
}

}  // namespace

absl::Status ReadCurveRows(Database& db, int64_t study_id, int64_t first, int64_t last,
                           std::vector<CurveRow>& rows) {
  // The ids of a study's runs are adjacent, and so are those of their summaries: two parallel scans replace a
  // search per run.
  Statement runs(db,
                 "SELECT id, cell_id, repeat, state, cause, started, finished, attempts, message FROM run "
                 "WHERE id BETWEEN ? "
                 "AND ? AND +study_id = ? "
                 "ORDER BY id");
  Statement summaries(
      db,
      "SELECT run_id, attempt_id, throughput, epoch_seconds, comm_share, peak_memory, accuracy, train_loss, "
      "time_to_accuracy, fingerprint, reported_step, nodes_hash FROM run_summary WHERE run_id BETWEEN ? AND "
      "? ORDER BY run_id");
  Statement attempts(db,
                     "SELECT state, cause, resumed_step FROM attempt WHERE run_id = ? ORDER BY number DESC");
  runs.Bind(first, last, study_id);
  summaries.Bind(first, last);
  rows.reserve(std::clamp<int64_t>(last - first + 1, 0, 100'000));
  int64_t summary_id = -1;
  const auto next_summary = [&] {
    summary_id = INT64_MAX;
    if (summaries.Step()) summaries.Read(summary_id);
  };
  next_summary();
  while (runs.Step()) {
    CurveRow& row = rows.emplace_back();
    runs.Read(row.run_id, row.cell_id, row.repeat, row.state, row.cause, row.started, row.finished,
              row.attempts, row.message);
    if (row.attempts > 1 && row.state == RunState::kSucceeded) {
      if (absl::Status status = CountRepeatedAttempts(attempts, row); !status.ok()) return status;
    }
    while (summary_id < row.run_id) next_summary();
    if (summary_id == row.run_id) {
      summaries.Read(summary_id, row.attempt_id, row.throughput, row.epoch_seconds, row.comm_share,
                     row.peak_memory, row.accuracy, row.train_loss, row.time_to_accuracy, row.fingerprint,
                     row.reported_step, row.nodes_hash);
    }
  }
  if (!runs.status().ok()) return runs.status();
  return summaries.status();
}

std::vector<uint32_t> OrderOfCurve(const std::vector<CurveRow>& rows) {
  const auto before = [](const CurveRow& a, const CurveRow& b) {
    return std::tie(a.cell_id, a.repeat) < std::tie(b.cell_id, b.repeat);
  };
  if (std::is_sorted(rows.begin(), rows.end(), before)) return {};
  std::vector<uint32_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return before(rows[a], rows[b]); });
  return order;
}

void SortForCurve(const std::vector<uint32_t>& order, std::vector<CurveRow>& rows) {
  if (order.empty()) return;
  std::vector<CurveRow> sorted;
  sorted.reserve(rows.size());
  for (const uint32_t place : order) sorted.push_back(std::move(rows[place]));
  rows = std::move(sorted);
}

absl::StatusOr<std::vector<CurveRow>> ListCurveRows(Database& db, int64_t study_id) {
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  int64_t first, last;
  if (absl::Status status = RunRange(db, study_id, first, last); !status.ok()) return status;
  std::vector<CurveRow> rows;
  if (absl::Status status = ReadCurveRows(db, study_id, first, last, rows); !status.ok()) return status;
  SortForCurve(OrderOfCurve(rows), rows);
  return rows;
}

absl::StatusOr<SeriesList> ListSeries(Database& db, const PointFilter& filter, const SeriesName& after,
                                      size_t most) {
  // CROSS JOIN lets SQLite begin with the series of the attempt. With the names in their order, it would read
  // the names of all attempts. SQLite keeps only `most` rows while it sorts.
  SeriesList list;
  Statement all(db,
                "SELECT e.id, k.name, e.rank FROM series e CROSS JOIN metric_key k ON k.id = e.key_id "
                "WHERE e.attempt_id = ?1 AND (?2 = '' OR k.name = ?2) AND (?3 IS NULL OR e.rank = ?3) "
                "AND (k.name, e.rank) > (?4, ?5) "
                "AND" SCALELAB_VISIBLE_ATTEMPT("?1") "AND" SCALELAB_POINTS_KEPT(
                    "?1") "ORDER BY k.name, e.rank LIMIT ?6");
  all.Bind(filter.attempt_id, filter.key, filter.rank, after.key, after.rank, most);
  while (all.Step()) {
    Series& series = list.series.emplace_back();
    all.Read(list.ids.emplace_back(), series.key, series.rank);
  }
  if (!all.status().ok()) return all.status();
  return list;
}

absl::Status ReadSeries(Database& db, int64_t attempt_id, int64_t id, size_t count_wanted, Series& series) {
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  {
    Statement kept(db, "SELECT 1 FROM series WHERE id = ?1 AND attempt_id = ?2 AND" SCALELAB_VISIBLE_ATTEMPT(
                           "?2") "AND" SCALELAB_POINTS_KEPT("?2"));
    kept.Bind(id, attempt_id);
    const bool found = kept.Step();
    if (!found) return kept.status();
  }
  // Reserve memory for a long series at once, because growing would copy it repeatedly. There are at most as
  // many points as lines. Memory that a sparse metric does not use is never touched, so it costs nothing.
  constexpr int64_t kMaxRoom = 1 << 22;
  int64_t first = 0, last = 0;
  {
    Statement range(db,
                    "SELECT (SELECT id FROM point_chunk WHERE id BETWEEN ?1 AND ?2 ORDER BY id LIMIT 1), "
                    "(SELECT id FROM point_chunk WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1)");
    range.Bind(ChunkId(id, 0), ChunkId(id, kMaxLine - 1));
    if (range.Step()) range.Read(first, last);
    if (!range.status().ok()) return range.status();
  }
  if (last > first && count_wanted == 0) {
    const size_t room = static_cast<size_t>(std::min<int64_t>(last - first + kMaxChunk, kMaxRoom));
    series.line.reserve(room);
    series.step.reserve(room);
    series.time.reserve(room);
    series.value.reserve(room);
  }
  Statement chunks(db, kSelectChunks);
  chunks.Bind(ChunkId(id, 0), ChunkId(id, kMaxLine - 1));
  while ((count_wanted == 0 || series.value.size() < count_wanted) && chunks.Step()) {
    const absl::StatusOr<ChunkHead> head = ReadChunk(chunks, db, attempt_id, series);
    if (!head.ok()) return head.status();
  }
  if (count_wanted > 0 && series.value.size() > count_wanted) {
    for (auto* column : {&series.line, &series.step}) column->resize(count_wanted);
    for (auto* column : {&series.time, &series.value}) column->resize(count_wanted);
  }
  return chunks.status();
}

// Returns the id of a series; 0 if it does not exist or is invisible.
static absl::StatusOr<int64_t> FindSeries(Database& db, int64_t attempt_id, const std::string& key,
                                          int rank) {
  Statement find(
      db,
      "SELECT id FROM series WHERE attempt_id = ?1 AND key_id = (SELECT id FROM metric_key WHERE name = ?2) "
      "AND rank = ?3 AND" SCALELAB_VISIBLE_ATTEMPT("?1") "AND" SCALELAB_POINTS_KEPT("?1"));
  find.Bind(attempt_id, key, rank);
  int64_t id = 0;
  if (find.Step()) find.Read(id);
  if (!find.status().ok()) return find.status();
  return id;
}

static absl::Status NoSeries(int64_t attempt_id, const std::string& key, int rank) {
  return absl::NotFoundError(absl::StrCat("Attempt ", attempt_id, " has no points of metric \"", key,
                                          "\", rank ", rank, "; they may have been deleted"));
}

absl::Status ReadSeriesPart(Database& db, int64_t attempt_id, size_t most, SeriesPlace& place,
                            Series& series) {
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  const absl::StatusOr<int64_t> id = FindSeries(db, attempt_id, series.key, series.rank);
  if (!id.ok()) return id.status();
  if (*id == 0) {
    return place.chunk == 0 ? absl::OkStatus() : NoSeries(attempt_id, series.key, series.rank);
  }
  const SeriesPlace from = place;
  int64_t begin = ChunkId(*id, 0);
  if (from.chunk != 0) {
    // Read the last chunk again, because it may have more points. If it was merged, its points are in the chunk
    // before its id, together with points that were not read.
    Statement last(db, "SELECT id FROM point_chunk WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1");
    last.Bind(begin, from.chunk);
    if (last.Step()) last.Read(begin);
    if (!last.status().ok()) return last.status();
  }
  Statement chunks(db, kSelectChunks);
  chunks.Bind(begin, ChunkId(*id, kMaxLine - 1));
  while (series.value.size() < most && chunks.Step()) {
    const absl::StatusOr<ChunkHead> head = ReadChunk(chunks, db, attempt_id, series);
    if (!head.ok()) return head.status();
    place.chunk = head->id;
    if (head->id > from.chunk) continue;
    // This is the first chunk of the part. Remove the points that were read before.
    const auto known =
        std::upper_bound(series.line.begin(), series.line.end(), from.line) - series.line.begin();
    for (auto* column : {&series.line, &series.step}) column->erase(column->begin(), column->begin() + known);
    for (auto* column : {&series.time, &series.value})
      column->erase(column->begin(), column->begin() + known);
  }
  if (!chunks.status().ok()) return chunks.status();
  if (series.value.size() > most) {
    for (auto* column : {&series.line, &series.step}) column->resize(most);
    for (auto* column : {&series.time, &series.value}) column->resize(most);
  }
  if (!series.line.empty()) place.line = series.line.back();
  return absl::OkStatus();
}

absl::StatusOr<size_t> CountPoints(Database& db, int64_t attempt_id, const SeriesName& name) {
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  const absl::StatusOr<int64_t> id = FindSeries(db, attempt_id, name.key, name.rank);
  if (!id.ok()) return id.status();
  if (*id == 0) return NoSeries(attempt_id, name.key, name.rank);
  Statement sum(db, "SELECT coalesce(sum(count), 0) FROM point_chunk WHERE id BETWEEN ? AND ?");
  sum.Bind(ChunkId(*id, 0), ChunkId(*id, kMaxLine - 1));
  size_t count = 0;
  if (sum.Step()) sum.Read(count);
  if (!sum.status().ok()) return sum.status();
  return count;
}

}  // namespace scalelab::db
