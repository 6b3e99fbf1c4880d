#include "db/migrations.h"

#include "absl/strings/str_cat.h"
#include "db/schema_views.h"
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

// Deletion and merging in pieces, points as frames, and counts of runs.
constexpr char kPieces[] = R"sql(
-- The identity of this database, also in the file next to it.
CREATE TABLE meta (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta (name, value) VALUES ('identity', lower(hex(randomblob(16))));

-- Number of runs by state, changed with the runs.
CREATE TABLE run_count (
  study_id INTEGER NOT NULL,
  state INTEGER NOT NULL,
  runs INTEGER NOT NULL,
  PRIMARY KEY (study_id, state)
) STRICT, WITHOUT ROWID;
INSERT INTO run_count (study_id, state, runs) SELECT study_id, state, count(*) FROM run GROUP BY study_id, state;

-- Studies whose rows are being deleted. They are invisible.
CREATE TABLE deleted_study (study_id INTEGER PRIMARY KEY) STRICT;

-- Attempts whose small chunks are being merged, and where to go on. `ended`: no more points will come.
CREATE TABLE merge_task (
  attempt_id INTEGER PRIMARY KEY,
  series_id INTEGER NOT NULL,
  chunk_id INTEGER NOT NULL,
  ended INTEGER NOT NULL
) STRICT;

-- To find out whether a metric's name is still in use.
CREATE INDEX series_by_key ON series (key_id);

-- Lines, steps and times of the points of a chunk, as frames: number i is base + i * stride + (r[i] << shift), and the
-- blob is r, little-endian unsigned integers of length(blob) / count bytes each. Times are the bits of a REAL. Metrics of
-- the same events share an axis; `uses` counts their chunks. id = attempt id * 2^32 + a number.
CREATE TABLE point_axis (
  id INTEGER PRIMARY KEY,
  uses INTEGER NOT NULL,
  count INTEGER NOT NULL,
  line_base INTEGER NOT NULL,
  line_stride INTEGER NOT NULL,
  line_shift INTEGER NOT NULL,
  line BLOB NOT NULL,
  step_base INTEGER NOT NULL,
  step_stride INTEGER NOT NULL,
  step_shift INTEGER NOT NULL,
  step BLOB NOT NULL,
  time_base INTEGER NOT NULL,
  time_stride INTEGER NOT NULL,
  time_shift INTEGER NOT NULL,
  time BLOB NOT NULL
) STRICT;

-- In chunks with an axis, `value` is a frame with stride 0, of the bits of REALs (kind 1), or of integers to divide by
-- 10^(kind - 2); line, step and time are empty. Chunks of older versions have axis 0 and kind 0.
ALTER TABLE point_chunk ADD COLUMN axis INTEGER NOT NULL DEFAULT 0;
ALTER TABLE point_chunk ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;
ALTER TABLE point_chunk ADD COLUMN base INTEGER NOT NULL DEFAULT 0;
ALTER TABLE point_chunk ADD COLUMN shift INTEGER NOT NULL DEFAULT 0;
)sql";

// Pauses of studies, and attempts that do not count for the limit of retries.
constexpr char kRetries[] = R"sql(
ALTER TABLE study ADD COLUMN pause_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE run ADD COLUMN uncounted INTEGER NOT NULL DEFAULT 0;
)sql";

// Cells as differences. Cells of older databases keep their JSON objects in "key" and "spec".
constexpr char kCellValues[] = R"sql(
-- The values of the parameters of a study's cells. id = study id * 2^32 + number. The columns "key" and "spec" of a cell
-- are JSON arrays of numbers. Number 0 is an object with the parameters of the cells that list no other value.
CREATE TABLE cell_value (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  value TEXT NOT NULL
) STRICT;
)sql";

}  // namespace

const std::vector<std::string>& Migrations() {
  static const auto* const steps = new std::vector<std::string>{
      kTables, FirstViews(), kPieces + ViewsOfFrames(), kRetries, kCellValues + ViewsOfCellValues()};
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
