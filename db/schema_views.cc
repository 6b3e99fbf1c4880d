#include "db/schema_views.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "db/block_codec.h"
#include "db/point_codec.h"

namespace scalelab::db {
namespace {

// Returns SQL for number `index` (an SQL expression) of an array of little-endian 64-bit integers
// in blob `column`.
std::string IntAt(const std::string& column, const std::string& index) {
  std::string sum;
  for (int byte = 7; byte >= 0; --byte) {
    // Decode a byte from its two hexadecimal digits, because SQLite cannot cast the bytes of a blob
    // to a number.
    const std::string place = absl::StrCat("8*(", index, ")+", byte + 1);
    const std::string digits = absl::StrCat("hex(substr(", column, ",", place, ",1))");
    absl::StrAppend(&sum, sum.empty() ? "" : "|", "((instr('123456789ABCDEF',substr(", digits,
                    ",1,1))*16+instr('123456789ABCDEF',substr(", digits, ",2,1)))<<", 8 * byte, ")");
  }
  return absl::StrCat("(", sum, ")");
}

// Returns SQL for number o.n of a column of lines or steps, of which possibly only the first two terms of an
// arithmetic progression are stored.
std::string ProgressionAt(const std::string& column) {
  return absl::StrCat("CASE WHEN length(", column, ")=8*c.count THEN ", IntAt(column, "o.n"), " ELSE ",
                      IntAt(column, "0"), "+o.n*(", IntAt(column, "1"), "-", IntAt(column, "0"), ") END");
}

// Returns SQL for the IEEE 754 number with the bits `bits`; NULL for NaN and infinities.
std::string DoubleOf(const std::string& bits) {
  return absl::StrReplaceAll(
      "CASE WHEN B>>52&2047=2047 THEN NULL ELSE CASE WHEN B<0 THEN -1.0 ELSE 1.0 END * "
      "CASE WHEN B>>52&2047=0 THEN (B&4503599627370495)*pow(2.0,-1022)/4503599627370496.0 "
      "ELSE (1.0+(B&4503599627370495)/4503599627370496.0)*pow(2.0,(B>>52&2047)-1023) END END",
      {{"B", bits}});
}

std::string Names(const std::string& column, const std::vector<const char*>& names, int first) {
  std::string out = absl::StrCat("CASE ", column);
  for (const char* name : names) absl::StrAppend(&out, " WHEN ", first++, " THEN '", name, "'");
  return out + " END";
}

std::string Time(const std::string& column) {
  return absl::StrCat("CASE WHEN ", column, ">0 THEN strftime('%Y-%m-%dT%H:%M:%fZ',", column,
                      "/1e6,'unixepoch') END");
}

std::string StateName(const std::string& column, bool skipped = false) {
  std::vector<const char*> names = {"QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"};
  if (skipped) names.push_back("SKIPPED");
  return Names(column, names, 1);
}

// The first version of the views lacks the last two causes, and those before step 8 lack the last one.
std::string CauseName(const std::string& column, bool first, bool noisy = false) {
  std::vector<const char*> names = {
      "TRAINER_ERROR", "RANK_KILLED",       "WORKER_LOST", "OUT_OF_MEMORY", "TIMEOUT",
      "NODE_FAIL",     "PREEMPTED",         "BOOT_FAIL",   "DEADLINE",      "ALLOCATION_CANCELLED",
      "NO_FINISH",     "PARAMETERS_DIFFER", "LAUNCH_ERROR"};
  if (!first) names.push_back("STORAGE_ERROR");
  if (noisy) names.push_back("NOISY");
  return Names(column, names, 1);
}

std::string StudiesView() {
  return absl::StrCat("CREATE VIEW studies AS SELECT s.id, s.name, s.owner, ", StateName("s.state"),
                      " AS state, s.priority, s.runs, ", Time("s.created"), " AS created, ",
                      Time("s.started"), " AS started, ", Time("s.finished"), " AS finished FROM study s");
}

// Before step 7, runs are not skipped; before step 8, attempts are not noisy.
std::string RunsView(bool first, const std::string& key = "c.key", bool skipped = false, bool noisy = false) {
  return absl::StrCat(
      "CREATE VIEW runs AS SELECT r.id, r.study_id, s.name AS study, r.cell_id, c.engine, c.model, "
      "c.precision, "
      "c.backend, c.ranks, c.global_batch, ",
      key, key == "c.key" ? "" : " AS key", ", r.repeat, r.position, ", StateName("r.state", skipped),
      " AS state, ", CauseName("r.cause", first, noisy), " AS cause, r.attempts, r.message, ",
      Time("r.started"), " AS started, ", Time("r.finished"),
      " AS finished, u.throughput, u.throughput_mean, u.epoch_seconds, u.step_seconds, u.comm_share, "
      "u.peak_memory, "
      "u.device_memory, u.accuracy, u.train_loss, u.time_to_accuracy, u.straggler_skew, u.cpu_utilisation, "
      "u.steps, "
      "u.fingerprint, m.metrics FROM run r JOIN study s ON s.id = r.study_id LEFT JOIN cell c ON c.id = "
      "r.cell_id "
      "LEFT JOIN run_summary u ON u.run_id = r.id LEFT JOIN run_metrics m ON m.run_id = r.id");
}

// Returns SQL for the JSON object with the values whose numbers are in `column` of a cell.
std::string ObjectOf(const std::string& column) {
  return absl::StrCat("(SELECT json_group_object(v.name, json(v.value)) FROM json_each(", column,
                      ") n CROSS JOIN cell_value v ON v.id = (c.study_id<<32)+n.value)");
}

std::string KeyOfCell() {
  return absl::StrCat("CASE WHEN substr(c.key,1,1)='{' THEN c.key ELSE ", ObjectOf("c.key"), " END");
}

// Returns the view of cells with all their parameters.
std::string CellsView() {
  return absl::StrCat(
      "CREATE VIEW cells AS SELECT c.id, c.study_id, c.position, c.engine, c.model, c.precision, c.backend, "
      "c.ranks, c.global_batch, c.excluded, ",
      KeyOfCell(),
      " AS key, CASE WHEN substr(c.spec,1,1)='{' THEN c.spec ELSE json_patch((SELECT z.value FROM cell_value "
      "z WHERE "
      "z.id = c.study_id<<32), ",
      ObjectOf("c.spec"), ") END AS spec FROM cell c");
}

// Before step 10, attempts have no results. The results of the attempt that counts are in run_summary.
std::string AttemptsView(bool first, bool noisy = false, bool results = false) {
  return absl::StrCat(
      "CREATE VIEW attempts AS SELECT a.id, a.run_id, r.study_id, a.number, a.token, l.external_id AS job, ",
      Names("a.state", {"ASSIGNED", "RUNNING", "STOPPING", "SUCCEEDED", "FAILED", "CANCELLED"}, 1),
      " AS state, ", CauseName("a.cause", first, noisy),
      " AS cause, a.message, a.nodes, a.directory, a.exit_status, a.parameter_hash, ", Time("a.assigned"),
      " AS assigned, ", Time("a.started"), " AS started, ", Time("a.finished"),
      " AS finished, p.json AS provenance",
      results ? ", ifnull(a.throughput, u.throughput) AS throughput, "
                "ifnull(a.epoch_seconds, u.epoch_seconds) AS epoch_seconds"
              : "",
      " FROM attempt a JOIN run r ON r.id = a.run_id LEFT JOIN allocation l ON "
      "l.id = a.allocation_id LEFT JOIN provenance p ON p.attempt_id = a.id",
      results ? " LEFT JOIN run_summary u ON u.run_id = a.run_id AND u.attempt_id = a.id" : "");
}

std::string AllocationsView() {
  return absl::StrCat("CREATE VIEW allocations AS SELECT l.id, l.study_id, l.token, l.external_id AS job, ",
                      Names("l.state", {"INTENDED", "PENDING", "RUNNING", "RELEASING", "ENDED"}, 1),
                      " AS state, l.nodes, l.ranks_per_node, l.cpus_per_rank, l.gpus_per_rank, l.reason, ",
                      Time("l.created"), " AS created, ", Time("l.started"), " AS started, ", Time("l.ended"),
                      " AS ended FROM allocation l");
}

std::string FirstPointsView() {
  return absl::StrCat(
      "CREATE VIEW points AS SELECT e.attempt_id, k.name AS key, e.rank, ", ProgressionAt("c.line"),
      " AS line, ", ProgressionAt("c.step"), " AS step, ", DoubleOf(IntAt("c.time", "o.n")), " AS time, ",
      DoubleOf(IntAt("c.value", "o.n")),
      " AS value FROM series e JOIN metric_key k ON k.id = e.key_id JOIN point_chunk c ON c.id BETWEEN "
      "e.id<<32 AND "
      "(e.id<<32)+4294967295 JOIN ordinal o ON o.n < c.count");
}

// Returns SQL for number `index` of an array in blob `column` of little-endian integers of `width` bytes.
std::string BytesAt(const std::string& column, const std::string& index, const std::string& width) {
  const std::string digits = absl::StrCat("hex(substr(", column, ",", index, "*", width, "+b.n+1,1))");
  return absl::StrCat("(SELECT ifnull(sum((instr('123456789ABCDEF',substr(", digits,
                      ",1,1))*16+instr('123456789ABCDEF',substr(", digits,
                      ",2,1)))<<8*b.n),0) FROM ordinal b WHERE b.n<", width, ")");
}

// Returns SQL for distance o.n of a frame in blob `column`.
std::string DistanceAt(const std::string& column) {
  return BytesAt(column, "o.n", absl::StrCat("(length(", column, ")/c.count)"));
}

// Returns SQL for number o.n of the frame `name` of the axis x.
std::string AxisAt(const std::string& name) {
  return absl::StrCat("x.", name, "_base+o.n*x.", name, "_stride+(", DistanceAt("x." + name), "<<x.", name,
                      "_shift)");
}

// Returns SQL for number o.n of a column of a chunk without an axis.
std::string ArrayAt(const std::string& column) {
  const std::string first = BytesAt(column, "0", "8");
  return absl::StrCat("CASE WHEN length(", column, ")=8*c.count THEN ", BytesAt(column, "o.n", "8"), " ELSE ",
                      first, "+o.n*(", BytesAt(column, "1", "8"), "-", first, ") END");
}

// Returns DoubleOf(bits) with the long expression `bits` written only once. The OFFSET keeps SQLite from putting the
// expression back in all places.
std::string DoubleOfOnce(const std::string& bits) {
  return absl::StrCat("(SELECT ", DoubleOf("b"), " FROM (SELECT ", bits, " AS b LIMIT 1 OFFSET 0))");
}

// Returns a SELECT of points with the given columns.
std::string PointsOf(const std::string& line, const std::string& step, const std::string& time,
                     const std::string& value, const std::string& rest) {
  return absl::StrCat(
      "SELECT e.attempt_id, k.name AS key, e.rank, ", line, " AS line, ", step, " AS step, ",
      DoubleOfOnce(time), " AS time, ", value,
      " AS value FROM series e JOIN metric_key k ON k.id = e.key_id JOIN point_chunk c ON c.id BETWEEN "
      "e.id<<32 AND (e.id<<32)+4294967295 JOIN ordinal o ON o.n < c.count ",
      rest);
}

// Returns SQL for the little-endian number of `bytes` bytes from byte `place` on in a text of hexadecimal digits.
std::string NumberIn(const std::string& digits, int place, int bytes) {
  std::string sum;
  for (int byte = 0; byte < bytes; ++byte) {
    const int at = 2 * (place + byte) + 1;
    absl::StrAppend(&sum, byte == 0 ? "" : "|", "((instr('123456789ABCDEF',substr(", digits, ",", at,
                    ",1))*16+instr('123456789ABCDEF',substr(", digits, ",", at + 1, ",1)))<<", 8 * byte, ")");
  }
  return absl::StrCat("(", sum, ")");
}

// Returns SQL for value o.n of a chunk c in blocks, see block_codec.h. Each SELECT uses the columns of the one inside it
// several times; the OFFSETs keep SQLite from putting the expressions in all of these places.
std::string ValueInBlocks() {
  static_assert(kBlock == 64 && kHeader == 30 && kScaleOffset == 2048);
  const auto inner = [](const std::string& columns, const std::string& from) {
    return absl::StrCat("SELECT ", columns, from.empty() ? "" : absl::StrCat(" FROM (", from, ")"),
                        " LIMIT 1 OFFSET 0");
  };
  const std::string digits = inner("o.n&63 AS j,hex(substr(c.value,(o.n>>6)*30+1,30)) AS h", "");
  const std::string header =
      inner(absl::StrCat("j,", NumberIn("h", 0, 8), " AS base,", NumberIn("h", 8, 8), " AS stride,",
                         NumberIn("h", 16, 8), " AS curve,", NumberIn("h", 24, 2), " AS place,",
                         NumberIn("h", 26, 2), " AS scale,", NumberIn("h", 28, 1), " AS width,",
                         NumberIn("h", 29, 1), " AS shift"),
            digits);
  const std::string word = inner(
      "scale,base+j*stride+j*(j-1)/2*curve AS line,j*width&7 AS skip,width,shift,"
      "hex(substr(c.value,place+(j*width>>3)+1,8)) AS h",
      header);
  const std::string number =
      inner(absl::StrCat("scale,line+((", NumberIn("h", 0, 8), ">>skip&(1<<width)-1)<<shift) AS x"), word);
  const std::string bits = inner("scale,x,((x>>1)+4611686018427387904)|((x&1)<<63) AS b", number);
  return absl::StrCat("(SELECT CASE scale WHEN 0 THEN ", DoubleOf("b"),
                      " ELSE x*pow(2.0,scale-2048) END FROM (", bits, "))");
}

// Returns the view of points of all encodings; `blocks`: also of chunks in blocks.
std::string PointsView(bool blocks = false) {
  const std::string visible =
      " NOT EXISTS (SELECT 1 FROM deleted_study d CROSS JOIN run v ON v.study_id = d.study_id CROSS JOIN "
      "attempt w ON "
      "w.run_id = v.id WHERE w.id = e.attempt_id)";
  const std::string number = absl::StrCat("c.base+(", DistanceAt("c.value"), "<<c.shift)");
  const std::string value =
      absl::StrCat("CASE c.kind WHEN 1 THEN ", DoubleOfOnce(number),
                   blocks ? absl::StrCat(" WHEN ", kBlocks, " THEN ", ValueInBlocks()) : "", " ELSE (",
                   number, ")/pow(10.0,c.kind-2) END");
  return absl::StrCat(
      "CREATE VIEW points AS ",
      PointsOf(ArrayAt("c.line"), ArrayAt("c.step"), ArrayAt("c.time"), DoubleOfOnce(ArrayAt("c.value")),
               absl::StrCat("WHERE c.axis = 0 AND", visible)),
      " UNION ALL ",
      PointsOf(AxisAt("line"), AxisAt("step"), AxisAt("time"), value,
               absl::StrCat("JOIN point_axis x ON x.id = c.axis WHERE", visible)),
      ";\n");
}

// Returns the end of a view without rows of deleted studies.
std::string Visible(const std::string& study) {
  return absl::StrCat(" WHERE ", study, " NOT IN (SELECT study_id FROM deleted_study);\n");
}

}  // namespace

std::string FirstViews() {
  return absl::StrCat(StudiesView(), ";\n", RunsView(true), ";\n", AttemptsView(true), ";\n",
                      AllocationsView(), ";\n", FirstPointsView(), ";\n");
}

std::string ViewsOfFrames() {
  return absl::StrCat(
      "DROP VIEW studies;\nDROP VIEW runs;\nDROP VIEW attempts;\nDROP VIEW allocations;\nDROP VIEW points;\n",
      StudiesView(), Visible("s.id"), RunsView(false), Visible("r.study_id"), AttemptsView(false),
      Visible("r.study_id"), AllocationsView(), Visible("l.study_id"), PointsView());
}

std::string ViewsOfCellValues() {
  return absl::StrCat("DROP VIEW runs;\n", RunsView(false, KeyOfCell()), Visible("r.study_id"), CellsView(),
                      Visible("c.study_id"));
}

std::string ViewsOfSkippedRuns() {
  return absl::StrCat("DROP VIEW runs;\n", RunsView(false, KeyOfCell(), true), Visible("r.study_id"));
}

std::string ViewsOfNoisyAttempts() {
  return absl::StrCat("DROP VIEW runs;\nDROP VIEW attempts;\n", RunsView(false, KeyOfCell(), true, true),
                      Visible("r.study_id"), AttemptsView(false, true), Visible("r.study_id"));
}

std::string ViewsOfBlocks() { return absl::StrCat("DROP VIEW points;\n", PointsView(true)); }

std::string ViewsOfAttemptResults() {
  return absl::StrCat("DROP VIEW attempts;\n", AttemptsView(false, true, true), Visible("r.study_id"));
}

}  // namespace scalelab::db
