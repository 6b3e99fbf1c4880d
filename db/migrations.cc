#include "db/migrations.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "db/sqlite.h"
#include "db/sqlite_store.h"

namespace scalelab::db {
namespace {

// There are few indexes, because each makes every insert slower. The table run has only one besides its id,
// and no foreign key to cell, because deleting cells would then need another one. Times are microseconds
// since 1970; states are the numbers of records.h (the views of the next step have names).
constexpr char kTables[] = R"sql(
CREATE TABLE study (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  owner TEXT NOT NULL,
  request_id TEXT NOT NULL,
  spec TEXT NOT NULL,
  state INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  runs INTEGER NOT NULL,
  created INTEGER NOT NULL,
  started INTEGER NOT NULL,
  finished INTEGER NOT NULL,
  cancel_requested INTEGER NOT NULL,
  -- Range of the ids of its runs, so that reading a whole study is a scan of neighbouring rows.
  first_run_id INTEGER NOT NULL DEFAULT 0,
  last_run_id INTEGER NOT NULL DEFAULT -1
) STRICT;
CREATE INDEX study_by_name ON study (name);
CREATE UNIQUE INDEX study_by_request ON study (owner, request_id) WHERE request_id <> '';
CREATE INDEX study_open ON study (state) WHERE state < 3;

CREATE TABLE cell (
  id INTEGER PRIMARY KEY,
  study_id INTEGER NOT NULL REFERENCES study (id),
  position INTEGER NOT NULL,
  engine TEXT NOT NULL,
  model TEXT NOT NULL,
  precision TEXT NOT NULL,
  backend TEXT NOT NULL,
  ranks INTEGER NOT NULL,
  global_batch INTEGER NOT NULL,
  key TEXT NOT NULL,
  spec TEXT NOT NULL,
  excluded INTEGER NOT NULL
) STRICT;
CREATE INDEX cell_by_study ON cell (study_id, position);

CREATE TABLE run (
  id INTEGER PRIMARY KEY,
  study_id INTEGER NOT NULL REFERENCES study (id),
  cell_id INTEGER NOT NULL,
  repeat INTEGER NOT NULL,
  position INTEGER NOT NULL,
  state INTEGER NOT NULL,
  cause INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  message TEXT NOT NULL,
  started INTEGER NOT NULL,
  finished INTEGER NOT NULL
) STRICT;
CREATE INDEX run_by_study ON run (study_id, position);

CREATE TABLE allocation (
  id INTEGER PRIMARY KEY,
  token TEXT NOT NULL UNIQUE,
  study_id INTEGER NOT NULL,
  run_id INTEGER NOT NULL,
  state INTEGER NOT NULL,
  external_id TEXT NOT NULL,
  nodes INTEGER NOT NULL,
  ranks_per_node INTEGER NOT NULL,
  cpus_per_rank INTEGER NOT NULL,
  gpus_per_rank INTEGER NOT NULL,
  reason TEXT NOT NULL,
  created INTEGER NOT NULL,
  started INTEGER NOT NULL,
  ended INTEGER NOT NULL
) STRICT;
CREATE INDEX allocation_by_study ON allocation (study_id);
CREATE INDEX allocation_open ON allocation (state) WHERE state < 5;

CREATE TABLE attempt (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES run (id),
  number INTEGER NOT NULL,
  token TEXT NOT NULL UNIQUE,
  allocation_id INTEGER NOT NULL,
  state INTEGER NOT NULL,
  cause INTEGER NOT NULL,
  message TEXT NOT NULL,
  nodes TEXT NOT NULL,
  directory TEXT NOT NULL,
  exit_status INTEGER,
  parameter_hash TEXT NOT NULL,
  assigned INTEGER NOT NULL,
  started INTEGER NOT NULL,
  finished INTEGER NOT NULL
) STRICT;
CREATE INDEX attempt_by_run ON attempt (run_id);

CREATE TABLE provenance (
  attempt_id INTEGER PRIMARY KEY REFERENCES attempt (id),
  json TEXT NOT NULL
) STRICT;

CREATE TABLE stream (
  attempt_id INTEGER NOT NULL REFERENCES attempt (id),
  rank INTEGER NOT NULL,
  position INTEGER NOT NULL,
  line INTEGER NOT NULL,
  malformed INTEGER NOT NULL,
  first_malformed TEXT NOT NULL,
  finished INTEGER NOT NULL,
  parameter_hash TEXT NOT NULL,
  error_kind TEXT NOT NULL,
  error_message TEXT NOT NULL,
  PRIMARY KEY (attempt_id, rank)
) STRICT, WITHOUT ROWID;

CREATE TABLE epoch (
  attempt_id INTEGER NOT NULL REFERENCES attempt (id),
  rank INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  time REAL,
  metrics TEXT NOT NULL,
  PRIMARY KEY (attempt_id, rank, epoch)
) STRICT, WITHOUT ROWID;

CREATE TABLE run_summary (
  run_id INTEGER PRIMARY KEY REFERENCES run (id),
  attempt_id INTEGER NOT NULL,
  throughput REAL,
  epoch_seconds REAL,
  comm_share REAL,
  peak_memory REAL,
  accuracy REAL,
  train_loss REAL,
  time_to_accuracy REAL,
  fingerprint TEXT NOT NULL,
  throughput_mean REAL,
  step_seconds REAL,
  device_memory REAL,
  straggler_skew REAL,
  cpu_utilisation REAL,
  steps INTEGER NOT NULL
) STRICT;

-- What the ranks said at the end, apart from run_summary so that the rows of a curve lie close together.
CREATE TABLE run_metrics (
  run_id INTEGER PRIMARY KEY REFERENCES run (id),
  metrics TEXT NOT NULL
) STRICT;

CREATE TABLE metric_key (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE series (
  id INTEGER PRIMARY KEY,
  attempt_id INTEGER NOT NULL REFERENCES attempt (id),
  key_id INTEGER NOT NULL REFERENCES metric_key (id),
  rank INTEGER NOT NULL,
  UNIQUE (attempt_id, key_id, rank)
) STRICT;

-- id = series id * 2^32 + line of the first point, so that a series is a range of ids in order. The columns are arrays
-- of little-endian 64-bit numbers (numpy: '<i8' for line and step, '<f8' for time and value); line and step hold only
-- their first two numbers where they are an arithmetic progression.
CREATE TABLE point_chunk (
  id INTEGER PRIMARY KEY,
  count INTEGER NOT NULL,
  line BLOB NOT NULL,
  step BLOB NOT NULL,
  time BLOB NOT NULL,
  value BLOB NOT NULL
) STRICT;

-- 0 to 4095, the places in a chunk, for the view "points".
CREATE TABLE ordinal (n INTEGER PRIMARY KEY) STRICT;
WITH RECURSIVE up (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM up WHERE n < 4095) INSERT INTO ordinal SELECT n FROM up;

-- Largest ids ever used: an id is never used again, even when its row is deleted.
CREATE TABLE counter (
  name TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
)sql";

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

// Returns the same for line and step, which may be stored as the first two terms of a progression.
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

std::string Names(const std::string& column, std::initializer_list<const char*> names, int first) {
  std::string out = absl::StrCat("CASE ", column);
  for (const char* name : names) absl::StrAppend(&out, " WHEN ", first++, " THEN '", name, "'");
  return out + " END";
}

std::string Time(const std::string& column) {
  return absl::StrCat("CASE WHEN ", column, ">0 THEN strftime('%Y-%m-%dT%H:%M:%fZ',", column,
                      "/1e6,'unixepoch') END");
}

// Returns the views for users: names instead of numbers, times as text, one row per point.
std::string Views() {
  const auto state = [](const std::string& column) {
    return Names(column, {"QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"}, 1);
  };
  const auto cause = [](const std::string& column) {
    return Names(
        column,
        {"TRAINER_ERROR", "RANK_KILLED", "WORKER_LOST", "OUT_OF_MEMORY", "TIMEOUT", "NODE_FAIL", "PREEMPTED",
         "BOOT_FAIL", "DEADLINE", "ALLOCATION_CANCELLED", "NO_FINISH", "PARAMETERS_DIFFER", "LAUNCH_ERROR"},
        1);
  };
  return absl::StrCat(
      "CREATE VIEW studies AS SELECT s.id, s.name, s.owner, ", state("s.state"),
      " AS state, s.priority, s.runs, ", Time("s.created"), " AS created, ", Time("s.started"),
      " AS started, ", Time("s.finished"), " AS finished FROM study s;\n",
      "CREATE VIEW runs AS SELECT r.id, r.study_id, s.name AS study, r.cell_id, c.engine, c.model, "
      "c.precision, "
      "c.backend, c.ranks, c.global_batch, c.key, r.repeat, r.position, ",
      state("r.state"), " AS state, ", cause("r.cause"), " AS cause, r.attempts, r.message, ",
      Time("r.started"), " AS started, ", Time("r.finished"),
      " AS finished, u.throughput, u.throughput_mean, u.epoch_seconds, u.step_seconds, u.comm_share, "
      "u.peak_memory, "
      "u.device_memory, u.accuracy, u.train_loss, u.time_to_accuracy, u.straggler_skew, u.cpu_utilisation, "
      "u.steps, "
      "u.fingerprint, m.metrics FROM run r JOIN study s ON s.id = r.study_id LEFT JOIN cell c ON c.id = "
      "r.cell_id "
      "LEFT JOIN run_summary u ON u.run_id = r.id LEFT JOIN run_metrics m ON m.run_id = r.id;\n",
      "CREATE VIEW attempts AS SELECT a.id, a.run_id, r.study_id, a.number, a.token, l.external_id AS job, ",
      Names("a.state", {"ASSIGNED", "RUNNING", "STOPPING", "SUCCEEDED", "FAILED", "CANCELLED"}, 1),
      " AS state, ", cause("a.cause"),
      " AS cause, a.message, a.nodes, a.directory, a.exit_status, a.parameter_hash, ", Time("a.assigned"),
      " AS assigned, ", Time("a.started"), " AS started, ", Time("a.finished"),
      " AS finished, p.json AS provenance FROM attempt a JOIN run r ON r.id = a.run_id LEFT JOIN allocation "
      "l ON "
      "l.id = a.allocation_id LEFT JOIN provenance p ON p.attempt_id = a.id;\n",
      "CREATE VIEW allocations AS SELECT l.id, l.study_id, l.token, l.external_id AS job, ",
      Names("l.state", {"INTENDED", "PENDING", "RUNNING", "RELEASING", "ENDED"}, 1),
      " AS state, l.nodes, l.ranks_per_node, l.cpus_per_rank, l.gpus_per_rank, l.reason, ", Time("l.created"),
      " AS created, ", Time("l.started"), " AS started, ", Time("l.ended"), " AS ended FROM allocation l;\n",
      "CREATE VIEW points AS SELECT e.attempt_id, k.name AS key, e.rank, ", ProgressionAt("c.line"),
      " AS line, ", ProgressionAt("c.step"), " AS step, ", DoubleOf(IntAt("c.time", "o.n")), " AS time, ",
      DoubleOf(IntAt("c.value", "o.n")),
      " AS value FROM series e JOIN metric_key k ON k.id = e.key_id JOIN point_chunk c ON c.id BETWEEN "
      "e.id<<32 AND "
      "(e.id<<32)+4294967295 JOIN ordinal o ON o.n < c.count;\n");
}

}  // namespace

const std::vector<std::string>& Migrations() {
  static const auto* const steps = new std::vector<std::string>{kTables, Views()};
  return *steps;
}

int NewestSchema() { return static_cast<int>(Migrations().size()); }

absl::Status Migrate(Database& db) {
  absl::StatusOr<int64_t> application = db.QueryInt("PRAGMA application_id");
  if (!application.ok()) return application.status();
  absl::StatusOr<int64_t> version = db.QueryInt("PRAGMA user_version");
  if (!version.ok()) return version.status();
  absl::StatusOr<int64_t> objects = db.QueryInt("SELECT count(*) FROM sqlite_schema");
  if (!objects.ok()) return objects.status();

  const bool empty = *application == 0 && *version == 0 && *objects == 0;
  if (!empty && *application != kApplicationId) {
    return absl::FailedPreconditionError(absl::StrCat(
        db.path(), " is a database of another program; name another file, or move this one away"));
  }
  if (*version > NewestSchema()) {
    return absl::FailedPreconditionError(
        absl::StrCat(db.path(), " has schema version ", *version, ", this program supports versions up to ",
                     NewestSchema(), "; a newer scalelab is needed to open it"));
  }
  for (int64_t step = *version; step < NewestSchema(); ++step) {
    Transaction transaction(db, Transaction::Kind::kWrite);
    if (!transaction.status().ok()) return transaction.status();
    absl::Status status =
        db.Execute(absl::StrCat(Migrations()[step], "PRAGMA application_id=", kApplicationId,
                                ";PRAGMA user_version=", step + 1, ";"));
    if (status.ok()) status = transaction.Commit();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace scalelab::db
