#include "db/migrations.h"

#include "absl/strings/str_cat.h"
#include "db/schema_views.h"
#include "db/sqlite/sqlite.h"
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

// Adds the pauses of studies, and the number of attempts that do not count for the limit of retries.
constexpr char kRetries[] = R"sql(
ALTER TABLE study ADD COLUMN pause_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE run ADD COLUMN uncounted INTEGER NOT NULL DEFAULT 0;
)sql";

// Stores cells as differences from common values. Cells of older databases keep their JSON objects in
// "key" and "spec".
constexpr char kCellValues[] = R"sql(
-- The values of the parameters of a study's cells. id = study id * 2^32 + number. The columns "key" and "spec" of a cell
-- are JSON arrays of numbers. Number 0 is an object with the parameters of the cells that list no other value.
CREATE TABLE cell_value (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  value TEXT NOT NULL
) STRICT;
)sql";

// Personal tokens, the audit log, and studies that only their owners see.
constexpr char kAccess[] = R"sql(
ALTER TABLE study ADD COLUMN private INTEGER NOT NULL DEFAULT 0;

-- The hash is the SHA-256 of the secret in hexadecimal; the secret is not stored. AUTOINCREMENT: no id is used twice.
CREATE TABLE access_token (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  hash TEXT NOT NULL UNIQUE,
  user TEXT NOT NULL,
  scope INTEGER NOT NULL,
  description TEXT NOT NULL,
  created INTEGER NOT NULL,
  expires INTEGER NOT NULL,
  last_used INTEGER NOT NULL,
  revoked INTEGER NOT NULL
) STRICT;

-- Calls that changed something (refused = 0), and calls that were refused. `count` equal calls are one row.
CREATE TABLE audit_entry (
  id INTEGER PRIMARY KEY,
  time INTEGER NOT NULL,
  user TEXT NOT NULL,
  source TEXT NOT NULL,
  address TEXT NOT NULL,
  action TEXT NOT NULL,
  target TEXT NOT NULL,
  result TEXT NOT NULL,
  detail TEXT NOT NULL,
  count INTEGER NOT NULL,
  refused INTEGER NOT NULL
) STRICT;
CREATE INDEX audit_entry_by_kind ON audit_entry (refused, id);
)sql";

// Held studies, drain mode, and usage that is charged while an allocation is held.
constexpr char kUsage[] = R"sql(
ALTER TABLE study ADD COLUMN held INTEGER NOT NULL DEFAULT 0;

-- Who is charged for an allocation, and what "usage" contains of it: `held` microseconds until `charged_until`.
ALTER TABLE allocation ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE allocation ADD COLUMN partition TEXT NOT NULL DEFAULT '';
ALTER TABLE allocation ADD COLUMN charged_until INTEGER NOT NULL DEFAULT 0;
ALTER TABLE allocation ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
UPDATE allocation SET
  owner = coalesce((SELECT s.owner FROM study s WHERE s.id = study_id), ''),
  partition = coalesce((SELECT json_extract(s.spec, '$.resources.partition') FROM study s WHERE s.id = study_id), '');
UPDATE allocation SET charged_until = ended, held = max(0, ended - started) WHERE state = 5 AND started > 0;

-- What users have used, with and without decay. Remains when studies are deleted.
CREATE TABLE usage (
  owner TEXT PRIMARY KEY,
  at INTEGER NOT NULL,
  decayed_node_seconds REAL NOT NULL,
  decayed_gpu_seconds REAL NOT NULL,
  node_seconds REAL NOT NULL,
  gpu_seconds REAL NOT NULL
) STRICT, WITHOUT ROWID;
-- Usage from before this step decays in whole weeks.
INSERT INTO usage
  SELECT owner, max(newest), sum(node_seconds / (1 << weeks)), sum(gpu_seconds / (1 << weeks)), sum(node_seconds),
    sum(gpu_seconds)
  FROM (SELECT owner, bounds.newest, min(60, (bounds.newest - ended) / 604800000000) AS weeks,
      held * 1e-6 * nodes AS node_seconds, held * 1e-6 * nodes * ranks_per_node * gpus_per_rank AS gpu_seconds
    FROM allocation, (SELECT max(ended) AS newest FROM allocation) bounds
    WHERE state = 5 AND started > 0 AND owner <> '')
  GROUP BY owner;

-- For limits of GPU-hours a week. `hour`: number of hours since 1970.
CREATE TABLE usage_hour (
  owner TEXT NOT NULL,
  partition TEXT NOT NULL,
  hour INTEGER NOT NULL,
  gpu_seconds REAL NOT NULL,
  PRIMARY KEY (owner, partition, hour)
) STRICT, WITHOUT ROWID;

-- At most one row, with id 1.
CREATE TABLE drain (
  id INTEGER PRIMARY KEY,
  draining INTEGER NOT NULL,
  reason TEXT NOT NULL,
  since INTEGER NOT NULL
) STRICT;
)sql";

// Adds the values with which a curve judges its runs.
constexpr char kJudgement[] = R"sql(
ALTER TABLE run_summary ADD COLUMN reported_step REAL;
ALTER TABLE run_summary ADD COLUMN nodes_hash INTEGER NOT NULL DEFAULT 0;
)sql";

// Retention and notifications.
constexpr char kKeeping[] = R"sql(
-- What retention has removed of a study, and when; 0: nothing. It is there for attempts that ended later.
CREATE TABLE removed (
  study_id INTEGER PRIMARY KEY,
  points INTEGER NOT NULL DEFAULT 0,
  logs INTEGER NOT NULL DEFAULT 0,
  directories INTEGER NOT NULL DEFAULT 0
) STRICT;
-- Removals that are not complete. kind: 1 points, 2 logs, 3 directories of attempts. last_run: the runs up to this id
-- are done.
CREATE TABLE removal (
  kind INTEGER NOT NULL,
  study_id INTEGER NOT NULL,
  last_run INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (kind, study_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX study_ended ON study (finished) WHERE state >= 3;

-- Notifications. state: 1 pending, 2 sent, 3 given up.
CREATE TABLE notice (
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL UNIQUE,
  study_id INTEGER NOT NULL,
  channel TEXT NOT NULL,
  target TEXT NOT NULL,
  payload TEXT NOT NULL,
  state INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  error TEXT NOT NULL,
  created INTEGER NOT NULL,
  due INTEGER NOT NULL,
  ended INTEGER NOT NULL
) STRICT;
CREATE INDEX notice_due ON notice (due) WHERE state = 1;
CREATE INDEX notice_given_up ON notice (id) WHERE state = 3;
CREATE INDEX notice_by_study ON notice (study_id);
)sql";

// Adds the values that explain the points of a curve. There is one row for each run whose ranks reported it.
// step, exposed and data have one little-endian 64-bit number for each rank (numpy: '<f8').
constexpr char kRunTimes[] = R"sql(
CREATE TABLE run_times (
  run_id INTEGER PRIMARY KEY,
  attempt_id INTEGER NOT NULL,
  nodes TEXT NOT NULL,
  ranks_per_node INTEGER NOT NULL,
  step BLOB NOT NULL,
  exposed BLOB NOT NULL,
  data BLOB NOT NULL,
  comm_total REAL,
  rank_norm REAL,
  mean_norm REAL,
  samples_to_accuracy REAL
) STRICT;
)sql";

// The ledger of predictions. Its rows stay when the studies are deleted.
constexpr char kPredictions[] = R"sql(
-- state: 1 pending, 2 scored, 3 ended without results. key, models: JSON.
CREATE TABLE prediction (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  study_id INTEGER NOT NULL,
  cell_id INTEGER NOT NULL,
  source_id INTEGER NOT NULL,
  study_name TEXT NOT NULL,
  owner TEXT NOT NULL,
  private INTEGER NOT NULL,
  key TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  models TEXT NOT NULL,
  ranks INTEGER NOT NULL,
  largest INTEGER NOT NULL,
  predicted REAL NOT NULL,
  low REAL NOT NULL,
  high REAL NOT NULL,
  state INTEGER NOT NULL,
  reason TEXT NOT NULL,
  measured REAL,
  measured_low REAL,
  measured_high REAL,
  created INTEGER NOT NULL,
  scored INTEGER NOT NULL,
  UNIQUE (cell_id, source_id)
) STRICT;
CREATE INDEX prediction_pending ON prediction (id) WHERE state = 1;
CREATE INDEX prediction_by_study ON prediction (study_id);
)sql";

// Adds the step from which an attempt continued, and the step of its last checkpoint.
constexpr char kCheckpoints[] = R"sql(
ALTER TABLE attempt ADD COLUMN resumed_step INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempt ADD COLUMN checkpoint_step INTEGER NOT NULL DEFAULT 0;
)sql";

// Adds the origin of imported studies.
constexpr char kOrigins[] = R"sql(
CREATE TABLE study_origin (
  study_id INTEGER PRIMARY KEY,
  server TEXT NOT NULL,
  study TEXT NOT NULL,
  sha256 TEXT NOT NULL,
  imported_by TEXT NOT NULL,
  imported INTEGER NOT NULL
) STRICT;
)sql";

// Adds the results of attempts that were repeated because they were noisy.
constexpr char kAttemptResults[] = R"sql(
ALTER TABLE attempt ADD COLUMN throughput REAL;
ALTER TABLE attempt ADD COLUMN epoch_seconds REAL;
)sql";

// Adds the texts of study files. They are not in the table study, because most reads of studies need no text.
constexpr char kStudyFiles[] = R"sql(
CREATE TABLE study_file (
  study_id INTEGER PRIMARY KEY,
  text TEXT NOT NULL
) STRICT;
)sql";

// Adds the time at which the coordinator first cancelled the job of an allocation.
constexpr char kCancels[] = R"sql(
ALTER TABLE allocation ADD COLUMN cancelled INTEGER NOT NULL DEFAULT 0;
)sql";

}  // namespace

const std::vector<std::string>& Migrations() {
  static const auto* const steps =
      new std::vector<std::string>{kTables,
                                   FirstViews(),
                                   absl::StrCat(kPieces, ViewsOfFrames()),
                                   kRetries,
                                   absl::StrCat(kCellValues, ViewsOfCellValues()),
                                   absl::StrCat(kAccess, kUsage, kJudgement, kKeeping),
                                   absl::StrCat(kRunTimes, kPredictions, ViewsOfSkippedRuns()),
                                   absl::StrCat(kCheckpoints, kOrigins, ViewsOfNoisyAttempts()),
                                   ViewsOfBlocks(),
                                   absl::StrCat(kAttemptResults, ViewsOfAttemptResults()),
                                   kStudyFiles,
                                   kCancels};
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
