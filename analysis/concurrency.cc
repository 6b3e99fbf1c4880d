#include "analysis/concurrency.h"

#include <algorithm>
#include <limits>

namespace scalelab::analysis {
namespace {

// Up to this number of sorted parts, merging them is cheaper than sorting.
constexpr size_t kMostParts = 64;

// Sorts the times by merging their sorted parts. There are only a few parts, because the attempts of one
// allocation are already in order.
void SortParts(std::vector<db::Micros>& times) {
  std::vector<size_t> begins = {0};
  for (size_t i = 1; i < times.size(); ++i) {
    if (times[i] < times[i - 1]) begins.push_back(i);
  }
  if (begins.size() > kMostParts) return std::sort(times.begin(), times.end());
  const auto at = [&](size_t i) { return times.begin() + static_cast<std::ptrdiff_t>(i); };
  while (begins.size() > 1) {
    std::vector<size_t> merged;
    for (size_t i = 0; i < begins.size(); i += 2) {
      merged.push_back(begins[i]);
      const size_t end = i + 2 < begins.size() ? begins[i + 2] : times.size();
      if (i + 1 < begins.size()) std::inplace_merge(at(begins[i]), at(begins[i + 1]), at(end));
    }
    begins = std::move(merged);
  }
}

// The number of attempts as a function of time: a step function.
class Load {
 public:
  explicit Load(const std::vector<db::AttemptTime>& attempts) {
    std::vector<db::Micros> begins, ends;
    begins.reserve(attempts.size());
    ends.reserve(attempts.size());
    for (const db::AttemptTime& attempt : attempts) {
      begins.push_back(attempt.assigned);
      ends.push_back(attempt.finished == 0 ? std::numeric_limits<db::Micros>::max() : attempt.finished);
    }
    SortParts(begins);
    SortParts(ends);
    times_.reserve(2 * attempts.size());
    count_.reserve(2 * attempts.size());
    int count = 0;
    for (size_t b = 0, e = 0; e < ends.size();) {
      const db::Micros time = b < begins.size() ? std::min(begins[b], ends[e]) : ends[e];
      for (; b < begins.size() && begins[b] == time; ++b) ++count;
      for (; e < ends.size() && ends[e] == time; ++e) --count;
      times_.push_back(time);
      count_.push_back(count);
    }
    MakeIndex();
  }

  Concurrency Between(db::Micros from, db::Micros to) const {
    Concurrency found;
    if (to <= from) return found;
    double sum = 0;
    size_t i = FirstAfter(from);
    for (db::Micros at = from; at < to; ++i) {
      const db::Micros next = i < times_.size() ? std::min(times_[i], to) : to;
      const int count = i == 0 ? 0 : count_[i - 1];
      sum += static_cast<double>(next - at) * count;
      found.most = std::max(found.most, count);
      at = next;
    }
    found.mean = std::max(1.0, sum / static_cast<double>(to - from));
    return found;
  }

 private:
  // Divides the time from the first to the last begin of an attempt into intervals with a few times each, because a
  // search of all times for each of 100,000 runs takes several times longer.
  void MakeIndex() {
    constexpr size_t kTimesEach = 4;
    if (times_.size() < kTimesEach) return;
    const db::Micros last =
        times_.back() == std::numeric_limits<db::Micros>::max() ? times_[times_.size() - 2] : times_.back();
    interval_ = std::max<db::Micros>(1, (last - times_.front()) / std::ssize(times_) * kTimesEach);
    for (size_t i = 0; i < times_.size() && times_[i] <= last; ++i) {
      const size_t number = IntervalOf(times_[i]);
      while (index_.size() <= number) index_.push_back(i);
    }
  }
  size_t IntervalOf(db::Micros time) const {
    return static_cast<size_t>((time - times_.front()) / interval_);
  }

  // Returns the index of the first time after `time`.
  size_t FirstAfter(db::Micros time) const {
    auto from = times_.begin(), to = times_.end();
    if (!index_.empty() && time >= times_.front()) {
      const size_t number = IntervalOf(time);
      from += static_cast<std::ptrdiff_t>(index_[std::min(number, index_.size() - 1)]);
      if (number + 1 < index_.size()) to = times_.begin() + static_cast<std::ptrdiff_t>(index_[number + 1]);
    }
    return static_cast<size_t>(std::upper_bound(from, to, time) - times_.begin());
  }

  std::vector<db::Micros> times_;
  std::vector<int> count_;  // number of attempts from times_[i] until times_[i + 1]
  db::Micros interval_ = 1;
  std::vector<size_t> index_;  // indexes of the first times of the intervals; empty if there are few times
};

}  // namespace

std::vector<Concurrency> FindConcurrency(const std::vector<db::AttemptTime>& attempts,
                                         const std::vector<db::CurveRow>& rows) {
  const Load load(attempts);
  std::vector<Concurrency> concurrency(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].state == db::RunState::kSucceeded)
      concurrency[i] = load.Between(rows[i].started, rows[i].finished);
  }
  return concurrency;
}

}  // namespace scalelab::analysis
