// Points of an attempt that continued from a checkpoint, together with those of the attempts before it. Reads them in
// pieces, so that the memory for a read does not grow with the number of series or points.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "db/store.h"

namespace scalelab::db {

// Numbers of names and points that a reader holds in memory: up to 5 MB, and about 1 MB.
inline constexpr size_t kSeriesPerPage = 16'384;
inline constexpr size_t kPointsPerPiece = 32'768;

// Returns the attempts that the steps of attempt `number` build on, newest first: the attempt itself and, if
// it continued from a checkpoint, those before it. `attempts` are the attempts of the run, ordered by number.
// Returns an empty list if none has this number.
std::vector<AttemptRow> AttemptsContinued(const std::vector<AttemptRow>& attempts, int number);

// The name of a series in its attempt. The default value is before all names.
struct SeriesName {
  std::string key;
  int rank = -1;
  // NOLINTNEXTLINE(modernize-use-nullptr): the compiler adds the 0.
  auto operator<=>(const SeriesName&) const = default;
};

// Returns the first `most` names after `after`, ordered by key and rank, of the series of `attempts` that match
// `filter`. Ignores filter.attempt_id and filter.first.
absl::StatusOr<std::vector<SeriesName>> ListContinuedSeries(Store& store,
                                                            const std::vector<AttemptRow>& attempts,
                                                            PointFilter filter, const SeriesName& after,
                                                            size_t most);

// Where the next part of a series begins.
struct SeriesPlace {
  int64_t chunk = 0;  // id of the last chunk that was read; 0: none
  int64_t line = -1;  // line of the last point that was read
};

// Reads one series in pieces, ordered by line. Each step occurs once: of an earlier attempt, only the steps before
// the first step of its continuation are used. Each piece is one read of the database. Points that are appended
// while the series is read are read too. A copy continues from the same place.
class SeriesReader {
 public:
  // `attempts` is the result of AttemptsContinued. It and `store` must outlive the reader.
  SeriesReader(Store& store, const std::vector<AttemptRow>& attempts, SeriesName name)
      : store_(&store), attempts_(&attempts), name_(std::move(name)), left_(attempts.size()) {}

  // Returns the next points, at most `most`, and none only at the end. Returns NOT_FOUND if the points were deleted after some
  // were read.
  absl::StatusOr<Series> Next(size_t most);
  // Returns whether the end was reached.
  bool done() const { return left_ == 0; }
  // Returns the number of points of the whole series at the moment. NOT_FOUND: as Next.
  absl::StatusOr<size_t> Count();

 private:
  absl::Status FindCuts();
  absl::Status ReadPart(size_t attempt, size_t most, SeriesPlace& place, Series& part);

  Store* store_;
  const std::vector<AttemptRow>* attempts_;
  SeriesName name_;
  std::vector<int64_t>
      cuts_;           // by attempt: only steps below this number are used; empty before the first read
  size_t left_;        // number of attempts that are not read to their end, the newest ones
  SeriesPlace place_;  // in the oldest of them
};

// Calls `take` for each piece of at most kPointsPerPiece points of each series, ordered by key, rank and line. See
// SeriesReader about the points. `attempts` is the result of AttemptsContinued. Ignores filter.attempt_id and
// filter.first.
absl::Status ReadContinuedPoints(Store& store, const std::vector<AttemptRow>& attempts,
                                 const PointFilter& filter, const std::function<void(Series)>& take);

}  // namespace scalelab::db
