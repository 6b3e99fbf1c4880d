#include "db/continued_points.h"

#include <algorithm>
#include <map>
#include <utility>

namespace scalelab::db {
namespace {

// Inserts the points of `earlier` whose step is at least 0 and less than `cut` before the points of `series`.
void Prepend(const Series& earlier, int64_t cut, Series& series) {
  Series all;
  all.key = series.key;
  all.rank = series.rank;
  const auto add = [&all](const Series& from, size_t i) {
    all.line.push_back(from.line[i]);
    all.step.push_back(from.step[i]);
    all.time.push_back(from.time[i]);
    all.value.push_back(from.value[i]);
  };
  for (size_t i = 0; i < earlier.step.size(); ++i) {
    if (earlier.step[i] >= 0 && earlier.step[i] < cut) add(earlier, i);
  }
  for (size_t i = 0; i < series.step.size(); ++i) add(series, i);
  series = std::move(all);
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

absl::Status ReadContinuedPoints(Store& store, const std::vector<AttemptRow>& attempts, PointFilter filter,
                                 const std::function<void(Series)>& take) {
  if (attempts.empty()) return absl::OkStatus();
  filter.attempt_id = attempts.front().id;
  if (attempts.size() == 1) return store.ReadPoints(filter, take);
  const size_t first = filter.first;
  std::map<std::pair<std::string, int>, Series> all;
  int64_t resumed = attempts.front().resumed_step;
  for (size_t i = 0; i < attempts.size(); ++i) {
    filter.attempt_id = attempts[i].id;
    const absl::Status read = store.ReadPoints(filter, [&](Series part) {
      Series& series =
          all.try_emplace({part.key, part.rank}, Series{part.key, part.rank, {}, {}, {}, {}}).first->second;
      if (i == 0) {
        series = std::move(part);
        return;
      }
      int64_t cut = resumed;
      for (const int64_t step : series.step) cut = std::min(cut, step < 0 ? cut : step);
      Prepend(part, cut, series);
    });
    if (!read.ok()) return read;
    if (attempts[i].resumed_step > 0) resumed = std::min(resumed, attempts[i].resumed_step);
  }
  for (auto& [name, series] : all) {
    if (first > 0 && series.step.size() > first) {
      series.line.resize(first), series.step.resize(first), series.time.resize(first),
          series.value.resize(first);
    }
    if (!series.step.empty()) take(std::move(series));
  }
  return absl::OkStatus();
}

}  // namespace scalelab::db
