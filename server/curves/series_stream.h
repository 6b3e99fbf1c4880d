// The points of one series as the service sends them: all of them, or a maximum number. The series is read in pieces,
// so that the memory does not grow with its length.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "analysis/downsample.h"
#include "db/continued_points.h"

namespace scalelab::server {

class SeriesStream {
 public:
  // `max_points`: 0 means all points. With a maximum, points that are appended while the series is read may be left out.
  SeriesStream(db::SeriesReader reader, size_t max_points)
      : max_points_(max_points),
        room_(max_points),
        behind_{.reader = reader},
        ahead_{.reader = std::move(reader)} {}

  // Returns the next points, at most db::kPointsPerPiece. Returns none only at the end. Holds at most two other
  // pieces. Returns NOT_FOUND if points were deleted after some were read.
  absl::StatusOr<db::Series> Next();
  // Returns whether the end was reached.
  bool done() const {
    if (downsampler_.has_value()) return downsampler_->done();
    return behind_.reader.done() || (max_points_ > 0 && room_ == 0);
  }

 private:
  struct Point {
    int64_t line = 0, step = 0;
    double time = 0, x = 0, y = 0;  // x: the step
  };
  // A series that is read from the start to the end. One piece of it is in memory.
  struct Window {
    // Returns point i. Requires that i does not decrease. After an error, sets `status` and returns any point.
    Point At(size_t i);

    db::SeriesReader reader;
    db::Series piece = {};
    size_t begin = 0;  // index of the first point of `piece`
    absl::Status status = {};
  };

  // Begins to choose points from a series with the first piece `first`. Returns false if all points are to be sent.
  absl::StatusOr<bool> Begin(const db::Series& first);
  absl::StatusOr<db::Series> NextChosen();

  const size_t max_points_;
  size_t room_;  // with a maximum but without a downsampler: number of points that may still be sent
  bool begun_ = false;
  Window behind_;  // without a downsampler, only its reader is used
  Window ahead_;   // only used with a downsampler
  std::optional<analysis::Downsampler> downsampler_;
};

}  // namespace scalelab::server
