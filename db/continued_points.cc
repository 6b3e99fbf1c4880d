#include "db/continued_points.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "db/reads.h"

namespace scalelab::db {
namespace {

constexpr size_t kSmallestPart = 1024;  // points

// Appends the points of `part` to `series`, without those whose step is negative or at least `cut`.
void AppendSteps(const Series& part, int64_t cut, Series& series) {
  for (size_t i = 0; i < part.step.size(); ++i) {
    if (part.step[i] < 0 || part.step[i] >= cut) continue;
    series.line.push_back(part.line[i]);
    series.step.push_back(part.step[i]);
    series.time.push_back(part.time[i]);
    series.value.push_back(part.value[i]);
  }
}

template <class T>
void AppendAll(const std::vector<T>& from, std::vector<T>& to) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

std::vector<AttemptRow> AttemptsContinued(const std::vector<AttemptRow>& attempts, int number) {
  std::vector<AttemptRow> newest_first;
  for (auto it = attempts.rbegin(); it != attempts.rend(); ++it) {
    if (it->number > number) continue;
    if (newest_first.empty() && it->number != number) break;
    newest_first.push_back(*it);
    // An attempt that began with the first step continues no other attempt. One that never began has no points.
    if (it->resumed_step == 0 && (newest_first.size() == 1 || it->checkpoint_step > 0)) break;
  }
  return newest_first;
}

absl::StatusOr<std::vector<SeriesName>> ListContinuedSeries(Store& store,
                                                            const std::vector<AttemptRow>& attempts,
                                                            PointFilter filter, const SeriesName& after,
                                                            size_t most) {
  std::vector<SeriesName> names;
  for (const AttemptRow& attempt : attempts) {
    filter.attempt_id = attempt.id;
    SeriesList list;
    const absl::Status read = store.ReadRows([&](Database& db) -> absl::Status {
      absl::StatusOr<SeriesList> found = ListSeries(db, filter, after, most);
      if (!found.ok()) return found.status();
      list = *std::move(found);
      return absl::OkStatus();
    });
    if (!read.ok()) return read;
    for (Series& series : list.series) names.push_back({std::move(series.key), series.rank});
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    if (names.size() > most) names.resize(most);
  }
  return names;
}

absl::StatusOr<Series> SeriesReader::Next(size_t most) {
  if (cuts_.empty()) {
    if (absl::Status found = FindCuts(); !found.ok()) return found;
  }
  Series points{name_.key, name_.rank, {}, {}, {}, {}};
  while (left_ > 0 && points.value.size() < most) {
    const size_t attempt = left_ - 1, wanted = most - points.value.size();
    // Points at or above the cut are read, but not returned, so parts must not become small.
    if (attempt > 0 && !points.value.empty() && wanted < kSmallestPart) break;
    Series part;
    if (absl::Status read = ReadPart(attempt, wanted, place_, part); !read.ok()) return read;
    const bool more = part.value.size() == wanted;
    if (attempt > 0) {
      AppendSteps(part, cuts_[attempt], points);
    } else if (points.value.empty()) {
      points = std::move(part);
    } else {
      AppendAll(part.line, points.line), AppendAll(part.step, points.step);
      AppendAll(part.time, points.time), AppendAll(part.value, points.value);
    }
    if (more) continue;
    --left_;
    place_ = {};
  }
  return points;
}

absl::StatusOr<size_t> SeriesReader::Count() {
  size_t count = 0;
  if (attempts_->size() == 1) {
    const absl::Status read = store_->ReadRows([&](Database& db) {
      const absl::StatusOr<size_t> counted = CountPoints(db, attempts_->front().id, name_);
      if (counted.ok()) count = *counted;
      return counted.status();
    });
    if (!read.ok()) return read;
    return count;
  }
  SeriesReader all(*store_, *attempts_, name_);
  all.cuts_ = cuts_;
  while (!all.done()) {
    const absl::StatusOr<Series> piece = all.Next(kPointsPerPiece);
    if (!piece.ok()) return piece.status();
    count += piece->value.size();
  }
  return count;
}

// The cut of an attempt is the smallest step of the attempts after it, but at most the smallest step at which one of
// them continued. It takes a read of these attempts, because their steps need not be in order.
absl::Status SeriesReader::FindCuts() {
  if (attempts_->empty()) return absl::OkStatus();
  cuts_.assign(attempts_->size(), std::numeric_limits<int64_t>::max());
  int64_t cut = attempts_->front().resumed_step;
  for (size_t i = 0; i + 1 < attempts_->size(); ++i) {
    if ((*attempts_)[i].resumed_step > 0) cut = std::min(cut, (*attempts_)[i].resumed_step);
    SeriesPlace place;
    for (bool more = true; more;) {
      Series part;
      if (absl::Status read = ReadPart(i, kPointsPerPiece, place, part); !read.ok()) {
        cuts_.clear();
        return read;
      }
      for (const int64_t step : part.step) {
        if (step >= 0) cut = std::min(cut, step);
      }
      more = part.value.size() == kPointsPerPiece;
    }
    cuts_[i + 1] = cut;
  }
  return absl::OkStatus();
}

absl::Status SeriesReader::ReadPart(size_t attempt, size_t most, SeriesPlace& place, Series& part) {
  const SeriesPlace from = place;
  return store_->ReadRows([&](Database& db) {
    // The store may repeat a read that failed.
    place = from;
    part = Series{name_.key, name_.rank, {}, {}, {}, {}};
    return ReadSeriesPart(db, (*attempts_)[attempt].id, most, place, part);
  });
}

absl::Status ReadContinuedPoints(Store& store, const std::vector<AttemptRow>& attempts,
                                 const PointFilter& filter, const std::function<void(Series)>& take) {
  SeriesName after;
  for (bool more = true; more;) {
    const auto names = ListContinuedSeries(store, attempts, filter, after, kSeriesPerPage);
    if (!names.ok()) return names.status();
    for (const SeriesName& name : *names) {
      SeriesReader reader(store, attempts, name);
      while (!reader.done()) {
        absl::StatusOr<Series> piece = reader.Next(kPointsPerPiece);
        if (!piece.ok()) return piece.status();
        if (!piece->value.empty()) take(*std::move(piece));
      }
    }
    more = names->size() == kSeriesPerPage;
    if (more) after = names->back();
  }
  return absl::OkStatus();
}

}  // namespace scalelab::db
