#include "server/analysis/concurrency.h"

#include <algorithm>
#include <limits>

namespace scalelab::server {
namespace {

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
    for (std::vector<db::Micros>* times : {&begins, &ends}) {
      // The attempts of one allocation are already in order.
      if (!std::is_sorted(times->begin(), times->end())) std::sort(times->begin(), times->end());
    }
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
  }

  Concurrency Between(db::Micros from, db::Micros to) const {
    Concurrency found;
    if (to <= from) return found;
    double sum = 0;
    size_t i = std::upper_bound(times_.begin(), times_.end(), from) - times_.begin();
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
  std::vector<db::Micros> times_;
  std::vector<int> count_;  // from times_[i] until times_[i + 1]
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

}  // namespace scalelab::server
