// The seam between the coordinator and durable storage.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "db/records.h"

namespace scalelab::db {

// Everything one group commit changes. Puts insert or overwrite by id; applied in the order of the members. All of
// it becomes durable, or none.
struct WriteBatch {
  std::vector<StudyRow> studies;
  std::vector<CellRow> cells;
  std::vector<RunRow> runs;
  std::vector<AllocationRow> allocations;
  std::vector<AttemptRow> attempts;
  std::vector<ProvenanceRow> provenance;
  std::vector<StreamAppend> appends;      // each must start at its stream's position, else the commit is refused
  std::vector<EpochRow> epochs;
  std::vector<RunSummary> summaries;
  std::vector<int64_t> deleted_studies;   // with all that belongs to them

  bool empty() const;
  void Clear();
};

// What the coordinator needs to go on after a restart: everything of studies that are not final.
struct Snapshot {
  std::vector<StudyRow> studies;
  std::vector<CellRow> cells;
  std::vector<RunRow> runs;               // all runs of these studies, final ones too
  std::vector<AttemptRow> attempts;       // not final
  std::vector<StreamRow> streams;         // of these attempts
  std::vector<AllocationRow> allocations; // not ended
  // Largest ids ever used, deleted rows included: an id is never used twice.
  int64_t last_study_id = 0, last_cell_id = 0, last_run_id = 0, last_attempt_id = 0, last_allocation_id = 0;
};

struct RunFilter {
  int64_t study_id = 0;
  std::optional<RunState> state;
  int after_position = -1;                // for pages
  int limit = 1000;
};

struct PointFilter {
  int64_t attempt_id = 0;
  std::string key;                        // empty: all
  std::optional<int> rank;
  size_t first = 0;                       // only so many points at the beginning of each series; 0: all
};

// One (key, rank) series of an attempt.
struct Series {
  std::string key;
  int rank = 0;
  std::vector<int64_t> line, step;
  std::vector<double> time, value;
};

// Writes come from one thread at a time; reads from any, also while a write runs, and see what was committed before
// they began. NOT_FOUND means that the row is not there; UNAVAILABLE and RESOURCE_EXHAUSTED (disk full) leave the
// database as it was, and the call may be made again.
class Store {
 public:
  virtual ~Store() = default;

  // Returns when all of `batch` is durable. FAILED_PRECONDITION when an append does not start at its stream's position.
  virtual absl::Status Commit(const WriteBatch& batch) = 0;
  virtual absl::StatusOr<Snapshot> Load() = 0;

  virtual absl::StatusOr<StudyRow> GetStudy(int64_t id) = 0;
  // The newest of that name.
  virtual absl::StatusOr<StudyRow> FindStudy(const std::string& name) = 0;
  virtual absl::StatusOr<StudyRow> FindRequest(const std::string& owner, const std::string& request_id) = 0;
  // Newest first, ids below `before` (0: from the newest).
  virtual absl::StatusOr<std::vector<StudyRow>> ListStudies(int64_t before, int limit) = 0;
  // Number of runs by state (index = RunState) of each study asked for.
  virtual absl::StatusOr<std::vector<std::vector<int64_t>>> CountRuns(const std::vector<int64_t>& study_ids) = 0;

  virtual absl::StatusOr<std::vector<CellRow>> ListCells(int64_t study_id) = 0;
  virtual absl::StatusOr<RunRow> GetRun(int64_t id) = 0;
  // By position.
  virtual absl::StatusOr<std::vector<RunRow>> ListRuns(const RunFilter& filter) = 0;
  // By number.
  virtual absl::StatusOr<std::vector<AttemptRow>> ListAttempts(int64_t run_id) = 0;
  virtual absl::StatusOr<AllocationRow> GetAllocation(int64_t id) = 0;
  // By rank.
  virtual absl::StatusOr<std::vector<StreamRow>> ListStreams(int64_t attempt_id) = 0;
  virtual absl::StatusOr<RunSummary> GetSummary(int64_t run_id) = 0;
  // The results of the runs with ids from `first_run_id` to `last_run_id`, by run id, without `metrics`. Runs without
  // results are left out. The ids of a study's runs rise with their positions, so one call serves a page of ListRuns.
  virtual absl::StatusOr<std::vector<RunSummary>> ListSummaries(int64_t first_run_id, int64_t last_run_id) = 0;
  // By cell and repeat.
  virtual absl::StatusOr<std::vector<CurveRow>> ListCurveRows(int64_t study_id) = 0;
  // Calls `take` for each series, by key and rank, points by line.
  virtual absl::Status ReadPoints(const PointFilter& filter, const std::function<void(Series)>& take) = 0;
};

}  // namespace scalelab::db
