// The interface between the coordinator and durable storage.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "db/access/access_store.h"
#include "db/records.h"

namespace scalelab::db {

class Database;

// All changes of one commit. Rows are inserted or overwritten by id, in the order of the members; the row that a cell,
// run or attempt belongs to never changes. The commit is atomic.
struct WriteBatch {
  std::vector<StudyRow> studies;
  std::vector<CellValueRow> cell_values;
  std::vector<CellRow> cells;
  std::vector<RunRow> runs;
  std::vector<AllocationRow> allocations;
  std::vector<AttemptRow> attempts;
  std::vector<ProvenanceRow> provenance;
  std::vector<StreamAppend> appends;  // each must start at its stream's position, else the commit fails
  std::vector<EpochRow> epochs;
  std::vector<RunSummary> summaries;
  std::vector<UsageRow> usage;  // by owner
  std::vector<UsageHourRow> usage_hours;
  std::optional<DrainRow> drain;
  // New notifications. A notification whose key exists is not inserted, because an earlier commit
  // has inserted it.
  std::vector<NoticeRow> notices;
  // Studies to delete with all rows that belong to them. They are invisible after the commit. Later calls of
  // Maintain delete the rows of large studies.
  std::vector<int64_t> deleted_studies;
  // Texts of study files, which are written before deleted_studies.
  std::vector<StudyFileRow> study_files;

  bool empty() const;
  void Clear();
};

// State that does not belong to a study.
struct ServiceState {
  std::vector<UsageRow> usage;            // of all users
  std::vector<UsageHourRow> usage_hours;  // the newest kUsageHours
  DrainRow drain;
};

// The attempts of an allocation.
struct AttemptsServed {
  int attempts = 0;
  int64_t newest_run = 0;  // the run of the newest attempt
};

// Counts the allocations of a run (0: of the whole study) that ended after its last attempt and
// served no attempt.
struct UnusedAllocations {
  int64_t study_id = 0, run_id = 0;
  int count = 0;
  Micros last_ended = 0;
  std::string last_reason;
};

// The state that the coordinator loads at a restart: all rows of studies that are not final.
struct Snapshot {
  std::vector<StudyRow> studies;
  std::vector<CellValueRow> cell_values;              // by study
  std::vector<CellRow> cells;                         // by study and position
  std::vector<RunRow> runs;                           // all runs of these studies, including final ones
  std::vector<AttemptRow> attempts;                   // attempts that are not final
  std::vector<StreamRow> streams;                     // streams of these attempts
  std::vector<ProvenanceRow> provenance;              // of these attempts
  std::vector<AllocationRow> allocations;             // all allocations that have not ended
  std::map<int64_t, AttemptsServed> attempts_served;  // by allocation that has not ended
  std::vector<UnusedAllocations> unused_allocations;  // of these studies
  std::map<int64_t, double> gpu_seconds;              // by study: GPU-seconds of allocations that have ended
  ServiceState service;
  std::map<int64_t, int>
      noisy_attempts;  // by run of these studies: attempts that failed because they were noisy
  // Of the newest attempts of all studies, newest first, without attempts that were restored from archives.
  std::vector<ProvenanceRow> newest_provenance;
  // Largest ids ever used, including those of deleted rows, because an id is never used twice.
  int64_t last_study_id = 0, last_cell_id = 0, last_run_id = 0, last_attempt_id = 0, last_allocation_id = 0;
};

// The user for whom a read is made. Reads leave out private studies of other users.
struct Viewer {
  bool all = true;   // sees every study
  std::string user;  // unless `all`: sees the studies of this owner, and studies that are not private
};

struct RunFilter {
  int64_t study_id = 0;
  std::optional<RunState> state;
  int after_position = -1;  // only runs after this position, for paging
  int limit = 1000;
};

struct PointFilter {
  int64_t attempt_id = 0;
  std::string key;  // empty: all keys
  std::optional<int> rank;
  size_t first = 0;  // maximum number of points, from the start of each series; 0: all
};

// The points of one metric and rank of an attempt.
struct Series {
  std::string key;
  int rank = 0;
  std::vector<int64_t> line, step;
  std::vector<double> time, value;
};

// Durable storage. One thread at a time calls Commit. Any thread may call the other methods, also during a
// commit; they see all commits that returned before they began. All methods block.
//
// Errors: NOT_FOUND if the row does not exist. UNAVAILABLE (locked by another process) and RESOURCE_EXHAUSTED (disk full,
// I/O error) leave the database unchanged, and a retry is safe. One exception: with a rollback journal, an I/O error in
// the very last step of a commit, the sync of the directory, is reported after the whole batch was written; read again
// before a retry, as the coordinator does. DATA_LOSS if the database is damaged; the message names the table. Commit and
// Maintain return FAILED_PRECONDITION if the file was deleted, moved or replaced while it is in use, and DATA_LOSS if it
// was emptied or overwritten: nothing of the batch is acknowledged then.
class Store : public AccessStore {
 public:
  // Writes `batch` and returns when it is durable. Returns FAILED_PRECONDITION if an append does not start at
  // its stream's position, or a row refers to one that does not exist. Returns ALREADY_EXISTS if a unique
  // value (a token, an owner's request_id) is taken, INVALID_ARGUMENT if an append is malformed.
  virtual absl::Status Commit(const WriteBatch& batch) = 0;
  // Does one bounded piece of the work that commits leave behind, in a short transaction: deletes rows of deleted
  // studies and points that retention removes, merges small chunks of points, gives free pages back to the filesystem. Returns whether more is left. May
  // be called during a Commit, which then waits for at most one piece.
  virtual absl::StatusOr<bool> Maintain() = 0;
  // Give the folders below db/ access to the database for their own statements. `read` uses a connection that
  // only reads, without a transaction. `write` runs inside one transaction, which is committed if it returns
  // OK; It waits for a commit in progress, and the next commit waits for it, so it must be short.
  virtual absl::Status ReadRows(const std::function<absl::Status(Database&)>& read) = 0;
  virtual absl::Status WriteRows(const std::function<absl::Status(Database&)>& write) = 0;
  // Keeps Maintain from deleting the rows of a study that is marked as deleted, until StopKeeping is called.
  // The rows of an invisible study can thus be written in several transactions. This is not stored: after a
  // restart, Maintain deletes the rows.
  virtual void KeepInvisible(int64_t study_id) = 0;
  virtual void StopKeeping(int64_t study_id) = 0;
  // Returns the state that the coordinator needs at a restart.
  virtual absl::StatusOr<Snapshot> Load() = 0;
  // Returns a snapshot of one study, which may be final. If the study does not exist, the snapshot
  // contains only its allocations that have not ended. Does not set `service`, `newest_provenance` and
  // the largest ids.
  virtual absl::StatusOr<Snapshot> LoadStudy(int64_t id) = 0;
  // Returns the state that does not belong to a study.
  virtual absl::StatusOr<ServiceState> LoadServiceState() = 0;

  // Returns the study with this id.
  virtual absl::StatusOr<StudyRow> GetStudy(int64_t id) = 0;
  // Returns the study with this id without its specification, which may be long.
  virtual absl::StatusOr<StudyRow> GetStudyHead(int64_t id) = 0;
  // Returns the newest study of that name that `viewer` may see.
  virtual absl::StatusOr<StudyRow> FindStudy(const std::string& name, const Viewer& viewer) = 0;
  // Returns the study that `owner` submitted with this request_id.
  virtual absl::StatusOr<StudyRow> FindRequest(const std::string& owner, const std::string& request_id) = 0;
  // Returns at most `limit` studies that `viewer` may see, newest first, with ids below `before` (0: from the newest),
  // without their specifications, which may be long.
  virtual absl::StatusOr<std::vector<StudyRow>> ListStudies(int64_t before, int limit,
                                                            const Viewer& viewer) = 0;
  // Returns the number of runs by state (index = RunState) for each of the studies. Takes no longer for large studies.
  virtual absl::StatusOr<std::vector<std::vector<int64_t>>> CountRuns(
      const std::vector<int64_t>& study_ids) = 0;

  // Returns the cells of a study, ordered by position.
  virtual absl::StatusOr<std::vector<CellRow>> ListCells(int64_t study_id) = 0;
  // Returns the cells with these ids, in their order. Returns NOT_FOUND if one of them does not exist.
  virtual absl::StatusOr<std::vector<CellRow>> GetCells(const std::vector<int64_t>& ids) = 0;
  // Returns all values of a study's cells, ordered by number.
  virtual absl::StatusOr<std::vector<CellValueRow>> ListCellValues(int64_t study_id) = 0;
  // Returns the values with these numbers, in their order, without those that do not exist.
  virtual absl::StatusOr<std::vector<CellValueRow>> GetCellValues(int64_t study_id,
                                                                  const std::vector<int>& numbers) = 0;
  // Returns the run with this id.
  virtual absl::StatusOr<RunRow> GetRun(int64_t id) = 0;
  // Returns the runs that match `filter`, ordered by position.
  virtual absl::StatusOr<std::vector<RunRow>> ListRuns(const RunFilter& filter) = 0;
  // Returns the attempts of a run, ordered by number.
  virtual absl::StatusOr<std::vector<AttemptRow>> ListAttempts(int64_t run_id) = 0;
  // Returns the hardware and software of an attempt's nodes as JSON; an empty text if they are not known.
  virtual absl::StatusOr<std::string> GetProvenance(int64_t attempt_id) = 0;
  // Returns the allocation with this id.
  virtual absl::StatusOr<AllocationRow> GetAllocation(int64_t id) = 0;
  // Returns the streams of an attempt, ordered by rank.
  virtual absl::StatusOr<std::vector<StreamRow>> ListStreams(int64_t attempt_id) = 0;
  // Returns the results of a run.
  virtual absl::StatusOr<RunSummary> GetSummary(int64_t run_id) = 0;
  // Returns the results of the runs with ids from `first_run_id` to `last_run_id`, ordered by run id, without
  // `metrics` and without runs that have no results. The ids of a study's runs increase with their positions,
  // so that one call serves a page of ListRuns.
  virtual absl::StatusOr<std::vector<RunSummary>> ListSummaries(int64_t first_run_id,
                                                                int64_t last_run_id) = 0;
  // Returns the runs of a study with their results, ordered by cell and repeat.
  virtual absl::StatusOr<SharedCurveRows> ListCurveRows(int64_t study_id) = 0;
  // Returns the times of the ranks of the runs of a study, by run id, without runs that have none.
  virtual absl::StatusOr<std::vector<RunTimes>> ListRunTimes(int64_t study_id) = 0;
  // Returns the times of all attempts, also of other studies, that overlap with the time from the start to the end of the
  // study; none if it has not started. Leaves out studies that ended and that were created more than 60 days before the
  // start. `rows` are those that ListCurveRows returned for the study, so that its runs are not read again.
  virtual absl::StatusOr<std::vector<AttemptTime>> ListAttemptTimes(int64_t study_id,
                                                                    const std::vector<CurveRow>& rows) = 0;
  // Calls `take` for each series that matches `filter` and has points, ordered by key and rank, with its
  // points ordered by line. No transaction is open during `take`. Leaves out series that are deleted
  // meanwhile.
  virtual absl::Status ReadPoints(const PointFilter& filter, const std::function<void(Series)>& take) = 0;
};

}  // namespace scalelab::db
