#include "server/curves/series_stream.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace scalelab::server {
namespace {

constexpr char kDeleted[] = "points of the run were deleted while they were read";

// Returns at most `count` points of a series that was read whole.
db::Series Choose(db::Series whole, size_t count) {
  if (whole.value.size() <= count) return whole;
  db::Series chosen{whole.key, whole.rank, {}, {}, {}, {}};
  for (const size_t i : analysis::Downsample({whole.step.begin(), whole.step.end()}, whole.value, count)) {
    chosen.line.push_back(whole.line[i]);
    chosen.step.push_back(whole.step[i]);
    chosen.time.push_back(whole.time[i]);
    chosen.value.push_back(whole.value[i]);
  }
  return chosen;
}

}  // namespace

absl::StatusOr<db::Series> SeriesStream::Next() {
  if (downsampler_.has_value()) return NextChosen();
  const bool first = !std::exchange(begun_, true);
  const bool limited = max_points_ > 0 && !first;
  absl::StatusOr<db::Series> piece =
      behind_.reader.Next(limited ? std::min(room_, db::kPointsPerPiece) : db::kPointsPerPiece);
  if (!piece.ok() || max_points_ == 0) return piece;
  if (first) {
    if (behind_.reader.done()) return Choose(*std::move(piece), max_points_);
    const absl::StatusOr<bool> begun = Begin(*piece);
    if (!begun.ok()) return begun.status();
    if (*begun) return NextChosen();
  }
  room_ -= piece->value.size();
  return piece;
}

absl::StatusOr<bool> SeriesStream::Begin(const db::Series& first) {
  const absl::StatusOr<size_t> size = behind_.reader.Count();
  if (!size.ok()) return size.status();
  if (*size < first.value.size()) return absl::NotFoundError(kDeleted);
  if (*size <= max_points_) return false;
  ahead_.reader = behind_.reader;
  ahead_.piece = behind_.piece = first;
  downsampler_.emplace(*size, max_points_);
  return true;
}

absl::StatusOr<db::Series> SeriesStream::NextChosen() {
  db::Series chosen{behind_.piece.key, behind_.piece.rank, {}, {}, {}, {}};
  while (!downsampler_->done() && chosen.value.size() < db::kPointsPerPiece) {
    const Point point = downsampler_->Next([this](size_t i) { return ahead_.At(i); },
                                           [this](size_t i) { return behind_.At(i); });
    if (!ahead_.status.ok()) return ahead_.status;
    if (!behind_.status.ok()) return behind_.status;
    chosen.line.push_back(point.line);
    chosen.step.push_back(point.step);
    chosen.time.push_back(point.time);
    chosen.value.push_back(point.y);
  }
  return chosen;
}

SeriesStream::Point SeriesStream::Window::At(size_t i) {
  while (status.ok() && i - begin >= piece.value.size()) {
    begin += piece.value.size();
    piece = {};  // free its memory before the next piece is read
    absl::StatusOr<db::Series> next = reader.Next(db::kPointsPerPiece);
    if (!next.ok()) {
      status = next.status();
    } else if (next->value.empty()) {
      status = absl::NotFoundError(kDeleted);
    } else {
      piece = *std::move(next);
    }
  }
  if (!status.ok()) return {};
  i -= begin;
  return {piece.line[i], piece.step[i], piece.time[i], static_cast<double>(piece.step[i]), piece.value[i]};
}

}  // namespace scalelab::server
