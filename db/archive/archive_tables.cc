#include "db/archive/archive_tables.h"

#include <string_view>

#include "absl/strings/str_cat.h"

namespace scalelab::db {
namespace {

using C = Change;
using N = Numbered;

// The queries of large tables read rows in the order of an index, because sorting would keep all
// rows in memory.

// Rows of the attempts of a study, by their column attempt_id.
#define SCALELAB_OF_ATTEMPT(table)                                  \
  "run v CROSS JOIN attempt a ON a.run_id = v.id CROSS JOIN " table \
  " t ON t.attempt_id = a.id WHERE v.study_id = ?1"
#define SCALELAB_OF_RUN(table) "run v CROSS JOIN " table " t ON t.run_id = v.id WHERE v.study_id = ?1"

// A token is unique.
constexpr char kNewToken[] = "lower(hex(randomblob(16)))";

// Returns a column that archives of schema 7, the first schema with archives, do not have. Their rows get
// 0 if `before` is kInteger, and no value if it is kNull.
ArchiveColumn Added(const char* name, Value::Type before) {
  ArchiveColumn column{name};
  column.before.emplace().type = before;
  return column;
}

std::vector<ArchiveTable> MakeTables() {
  return {
      // The request_id is not restored: it must be unique, and no client repeats the request after the
      // restore. The last transaction sets the range of the runs' ids.
      {"study",
       {{"id", C::kNew, N::kStudy},
        {"name"},
        {"owner"},
        {"request_id", C::kEmpty},
        {"spec", C::kNone, N::kNothing, nullptr, "json_remove(t.spec, '$.notify')"},
        {"state"},
        {"priority"},
        {"runs"},
        {"created"},
        {"started"},
        {"finished"},
        {"cancel_requested"},
        {"pause_reason"},
        {"private"},
        {"held"}},
       "study t WHERE t.id = ?1",
       "",
       "",
       ""},
      {"cell_value",
       {{"id", C::kHighBits, N::kStudy}, {"name"}, {"value"}},
       "cell_value t WHERE t.id BETWEEN ?1 << 32 AND (?1 << 32) + 4294967295 ORDER BY t.id",
       "",
       "",
       ""},
      {"cell",
       {{"id", C::kNew, N::kCell},
        {"study_id", C::kReference, N::kStudy},
        {"position"},
        {"engine"},
        {"model"},
        {"precision"},
        {"backend"},
        {"ranks"},
        {"global_batch"},
        {"key"},
        {"spec"},
        {"excluded"}},
       "cell t WHERE t.study_id = ?1 ORDER BY t.position",
       "",
       "",
       ""},
      // Runs are ordered by id, because their ids increase with their positions.
      {"run",
       {{"id", C::kNew, N::kRun},
        {"study_id", C::kReference, N::kStudy},
        {"cell_id", C::kReference, N::kCell},
        {"repeat"},
        {"position"},
        {"state"},
        {"cause"},
        {"attempts"},
        {"uncounted"},
        {"message"},
        {"started"},
        {"finished"}},
       "run t WHERE t.study_id = ?1 ORDER BY t.position",
       "",
       "",
       ""},
      // A job may end after its study. The archive contains such a job as if it had ended with the study.
      {"allocation",
       {{"id", C::kNew, N::kAllocation},
        {"token", C::kNone, N::kNothing, nullptr, kNewToken},
        {"study_id", C::kReference, N::kStudy},
        {"run_id", C::kReference, N::kRun},
        {"state", C::kNone, N::kNothing, "5"},
        {"external_id"},
        {"nodes"},
        {"ranks_per_node"},
        {"cpus_per_rank"},
        {"gpus_per_rank"},
        {"reason"},
        {"created"},
        {"started"},
        {"ended", C::kNone, N::kNothing,
         "iif(t.state = 5, t.ended, (SELECT s.finished FROM study s WHERE s.id = t.study_id))"},
        {"owner"},
        {"partition"},
        {"charged_until"},
        {"held"},
        Added("cancelled", Value::Type::kInteger)},
       "allocation t WHERE t.study_id = ?1 ORDER BY t.id",
       "",
       "",
       ""},
      // The path of the attempt's directory is not restored: the archive does not contain the files, and on
      // this machine the path could belong to somebody else.
      {"attempt",
       {{"id", C::kNew, N::kAttempt},
        {"run_id", C::kReference, N::kRun},
        {"number"},
        {"token", C::kNone, N::kNothing, nullptr, kNewToken},
        {"allocation_id", C::kReference, N::kAllocation},
        {"state"},
        {"cause"},
        {"message"},
        {"nodes"},
        {"directory", C::kEmpty},
        {"exit_status"},
        {"parameter_hash"},
        {"assigned"},
        {"started"},
        {"finished"},
        Added("resumed_step", Value::Type::kInteger),
        Added("checkpoint_step", Value::Type::kInteger),
        Added("throughput", Value::Type::kNull),
        Added("epoch_seconds", Value::Type::kNull)},
       SCALELAB_OF_RUN("attempt"),
       "",
       "",
       ""},
      {"provenance",
       {{"attempt_id", C::kReference, N::kAttempt}, {"json"}},
       SCALELAB_OF_ATTEMPT("provenance"),
       "",
       "",
       ""},
      {"stream",
       {{"attempt_id", C::kReference, N::kAttempt},
        {"rank"},
        {"position"},
        {"line"},
        {"malformed"},
        {"first_malformed"},
        {"finished"},
        {"parameter_hash"},
        {"error_kind"},
        {"error_message"}},
       SCALELAB_OF_ATTEMPT("stream"),
       "",
       "",
       ""},
      {"epoch",
       {{"attempt_id", C::kReference, N::kAttempt}, {"rank"}, {"epoch"}, {"time"}, {"metrics"}},
       SCALELAB_OF_ATTEMPT("epoch"),
       "",
       "",
       ""},
      {"run_summary",
       {{"run_id", C::kReference, N::kRun},
        {"attempt_id", C::kReference, N::kAttempt},
        {"throughput"},
        {"epoch_seconds"},
        {"comm_share"},
        {"peak_memory"},
        {"accuracy"},
        {"train_loss"},
        {"time_to_accuracy"},
        {"fingerprint"},
        {"throughput_mean"},
        {"step_seconds"},
        {"device_memory"},
        {"straggler_skew"},
        {"cpu_utilisation"},
        {"steps"},
        {"reported_step"},
        {"nodes_hash"}},
       SCALELAB_OF_RUN("run_summary"),
       "",
       "",
       ""},
      {"run_metrics",
       {{"run_id", C::kReference, N::kRun}, {"metrics"}},
       SCALELAB_OF_RUN("run_metrics"),
       "",
       "",
       ""},
      {"run_times",
       {{"run_id", C::kReference, N::kRun},
        {"attempt_id", C::kReference, N::kAttempt},
        {"nodes"},
        {"ranks_per_node"},
        {"step"},
        {"exposed"},
        {"data"},
        {"comm_total"},
        {"rank_norm"},
        {"mean_norm"},
        {"samples_to_accuracy"}},
       SCALELAB_OF_RUN("run_times"),
       "",
       "",
       ""},
      {"point_axis",
       {{"id", C::kHighBits, N::kAttempt},
        {"uses"},
        {"count"},
        {"line_base"},
        {"line_stride"},
        {"line_shift"},
        {"line"},
        {"step_base"},
        {"step_stride"},
        {"step_shift"},
        {"step"},
        {"time_base"},
        {"time_stride"},
        {"time_shift"},
        {"time"}},
       "run v CROSS JOIN attempt a ON a.run_id = v.id CROSS JOIN point_axis t ON t.id BETWEEN a.id << 32 AND "
       "(a.id << 32) + 4294967295 WHERE v.study_id = ?1",
       "",
       "",
       ""},
      {"series",
       {{"id", C::kNew, N::kSeries},
        {"attempt_id", C::kReference, N::kAttempt},
        {"key_id", C::kMetricName, N::kNothing, "(SELECT k.name FROM metric_key k WHERE k.id = t.key_id)"},
        {"rank"}},
       SCALELAB_OF_ATTEMPT("series"),
       "",
       "",
       ""},
      {"point_chunk",
       {{"id", C::kHighBits, N::kSeries},
        {"count"},
        {"line"},
        {"step"},
        {"time"},
        {"value"},
        {"axis", C::kHighBits, N::kAttempt},
        {"kind"},
        {"base"},
        {"shift"}},
       "run v CROSS JOIN attempt a ON a.run_id = v.id CROSS JOIN series e ON e.attempt_id = a.id CROSS JOIN "
       "point_chunk t ON t.id BETWEEN e.id << 32 AND (e.id << 32) + 4294967295 WHERE v.study_id = ?1",
       "",
       "",
       ""},
      {"notice",
       {{"id", C::kNull},
        {"key", C::kNoticeKey},
        {"study_id", C::kReference, N::kStudy},
        {"channel"},
        {"target"},
        {"payload"},
        {"state"},
        {"attempts"},
        {"error"},
        {"created"},
        {"due"},
        {"ended"}},
       "notice t WHERE t.study_id = ?1 ORDER BY t.id",
       "",
       "",
       ""},
      {"removed",
       {{"study_id", C::kReference, N::kStudy}, {"points"}, {"logs"}, {"directories"}},
       "removed t WHERE t.study_id = ?1",
       "",
       "",
       ""},
      {"study_origin",
       {{"study_id", C::kReference, N::kStudy},
        {"server"},
        {"study"},
        {"sha256"},
        {"imported_by"},
        {"imported"}},
       "study_origin t WHERE t.study_id = ?1",
       "",
       "",
       ""},
      {"study_file",
       {{"study_id", C::kReference, N::kStudy}, {"text"}},
       "study_file t WHERE t.study_id = ?1",
       "",
       "",
       ""},
      // This table is the last one, because the chunks must not be merged before all of them are stored.
      {"merge_task",
       {{"attempt_id", C::kReference, N::kAttempt}},
       SCALELAB_OF_ATTEMPT("merge_task"),
       "",
       "",
       ""},
  };
}

void AddSql(ArchiveTable& table) {
  std::string columns, expressions, published, parameters;
  for (const ArchiveColumn& column : table.columns) {
    const char* comma = columns.empty() ? "" : ", ";
    absl::StrAppend(&columns, comma, column.name);
    const std::string expression =
        column.expression != nullptr ? column.expression : absl::StrCat("t.", column.name);
    absl::StrAppend(&expressions, comma, expression);
    absl::StrAppend(&published, comma, column.published != nullptr ? column.published : expression);
    absl::StrAppend(&parameters, comma, "?");
  }
  table.select = absl::StrCat("SELECT ", expressions, " FROM ", table.from);
  // Notifications name mail addresses and secret links.
  if (std::string_view(table.name) != "notice")
    table.published = absl::StrCat("SELECT ", published, " FROM ", table.from);
  // A study file with the word "notify" may name them too, even in a comment. An escape in a quoted key can hide the
  // word. A specification may have the section without the file, from the configuration of the owner.
  if (std::string_view(table.name) == "study_file") {
    absl::StrAppend(&table.published,
                    " AND t.text NOT LIKE '%notify%' AND (instr(t.text, '\\') = 0 OR EXISTS (SELECT 1 FROM "
                    "study s WHERE s.id = t.study_id AND json_extract(s.spec, '$.notify') IS NULL))");
  }
  if (std::string_view(table.name) == "merge_task") {
    columns += ", series_id, chunk_id, ended";
    parameters += ", 0, 0, 1";
  }
  table.insert = absl::StrCat("INSERT INTO ", table.name, " (", columns, ") VALUES (", parameters, ")");
}

}  // namespace

const std::vector<ArchiveTable>& ArchiveTables() {
  static const auto* const tables = [] {
    auto* made = new std::vector<ArchiveTable>(MakeTables());
    for (ArchiveTable& table : *made) AddSql(table);
    return made;
  }();
  return *tables;
}

size_t ColumnIndex(const ArchiveTable& table, const char* column) {
  size_t i = 0;
  while (std::string_view(table.columns[i].name) != column) ++i;
  return i;
}

}  // namespace scalelab::db
