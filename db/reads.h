// The Store's read operations, with its contract. The caller has exclusive use of the connection.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "db/continued_points.h"
#include "db/sqlite/sqlite.h"
#include "db/store.h"

namespace scalelab::db {

absl::StatusOr<Snapshot> Load(Database& db);
absl::StatusOr<Snapshot> LoadStudy(Database& db, int64_t id);
absl::StatusOr<ServiceState> LoadServiceState(Database& db);
absl::StatusOr<StudyRow> GetStudy(Database& db, int64_t id);
absl::StatusOr<StudyRow> GetStudyHead(Database& db, int64_t id);
absl::StatusOr<StudyRow> FindStudy(Database& db, const std::string& name, const Viewer& viewer);
absl::StatusOr<StudyRow> FindRequest(Database& db, const std::string& owner, const std::string& request_id);
absl::StatusOr<std::vector<StudyRow>> ListStudies(Database& db, int64_t before, int limit,
                                                  const Viewer& viewer);
absl::StatusOr<std::vector<std::vector<int64_t>>> CountRuns(Database& db,
                                                            const std::vector<int64_t>& study_ids);
absl::StatusOr<std::vector<CellRow>> ListCells(Database& db, int64_t study_id);
absl::StatusOr<std::vector<CellRow>> GetCells(Database& db, const std::vector<int64_t>& ids);
absl::StatusOr<std::vector<CellValueRow>> ListCellValues(Database& db, int64_t study_id);
absl::StatusOr<std::vector<CellValueRow>> GetCellValues(Database& db, int64_t study_id,
                                                        const std::vector<int>& numbers);
absl::StatusOr<RunRow> GetRun(Database& db, int64_t id);
absl::StatusOr<std::vector<RunRow>> ListRuns(Database& db, const RunFilter& filter);
absl::StatusOr<std::vector<AttemptRow>> ListAttempts(Database& db, int64_t run_id);
absl::StatusOr<std::string> GetProvenance(Database& db, int64_t attempt_id);
absl::StatusOr<AllocationRow> GetAllocation(Database& db, int64_t id);
absl::StatusOr<std::vector<StreamRow>> ListStreams(Database& db, int64_t attempt_id);
absl::StatusOr<RunSummary> GetSummary(Database& db, int64_t run_id);
absl::StatusOr<std::vector<RunSummary>> ListSummaries(Database& db, int64_t first_run_id,
                                                      int64_t last_run_id);
absl::StatusOr<std::vector<CurveRow>> ListCurveRows(Database& db, int64_t study_id);
// Reads the first and last id of a study's runs; last < first if it has none. A scan of that range must also
// have the condition "+study_id = ?", because ids of other studies may lie in between. The + keeps SQLite
// from using the index on study_id instead of the range.
absl::Status RunRange(Database& db, int64_t study_id, int64_t& first, int64_t& last);
// Appends the rows of a study's runs in a range of ids to `rows`, by id. The caller has a transaction.
absl::Status ReadCurveRows(Database& db, int64_t study_id, int64_t first, int64_t last,
                           std::vector<CurveRow>& rows);
// Returns the indexes of the rows, ordered by cell and repeat; empty if the rows are in that order. Sorting
// indexes is several times cheaper than moving the rows.
std::vector<uint32_t> OrderOfCurve(const std::vector<CurveRow>& rows);
void SortForCurve(const std::vector<uint32_t>& order, std::vector<CurveRow>& rows);
absl::StatusOr<std::vector<RunTimes>> ListRunTimes(Database& db, int64_t study_id);
absl::StatusOr<std::vector<AttemptTime>> ListAttemptTimes(Database& db, int64_t study_id,
                                                          const std::vector<CurveRow>& rows);

// The first `most` series after `after` that match `filter`, without points, ordered by key and rank; ids[i] belongs to
// series[i].
struct SeriesList {
  std::vector<int64_t> ids;
  std::vector<Series> series;
};
absl::StatusOr<SeriesList> ListSeries(Database& db, const PointFilter& filter, const SeriesName& after,
                                      size_t most);
// Appends the points of series `id` of an attempt; only the `first` ones if that is not 0, and none if the
// series was deleted since ListSeries returned it.
absl::Status ReadSeries(Database& db, int64_t attempt_id, int64_t id, size_t first, Series& series);
// Appends the next points after `place` of the attempt's series with the key and rank of `series`, which has no points
// yet, and moves `place`. Appends fewer than `most` points only at the end of the series, and none if there is no such
// series. Returns NOT_FOUND if the series was deleted after a part was read. Chunks may be merged between two calls.
absl::Status ReadSeriesPart(Database& db, int64_t attempt_id, size_t most, SeriesPlace& place,
                            Series& series);
// Returns the number of points of an attempt's series, or NOT_FOUND.
absl::StatusOr<size_t> CountPoints(Database& db, int64_t attempt_id, const SeriesName& name);

}  // namespace scalelab::db
