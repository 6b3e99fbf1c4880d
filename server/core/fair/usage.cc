#include "server/core/fair/usage.h"

#include <algorithm>
#include <cmath>

namespace scalelab::server {
namespace {

constexpr int64_t kHoursOfWeek = 7 * 24;

// Returns the share of usage that remains after `time`.
double Left(db::Micros time, absl::Duration half_life) {
  return std::exp2(-absl::FDivDuration(absl::Microseconds(std::max<db::Micros>(time, 0)), half_life));
}

}  // namespace

double DecayedSeconds(db::Micros from, db::Micros until, db::Micros now, absl::Duration half_life) {
  if (until <= from) return 0;
  // expm1 avoids cancellation if the time is much shorter than the half-life.
  const double halves = absl::FDivDuration(absl::Microseconds(until - from), half_life);
  const double at_end = -std::expm1(-halves * M_LN2) * absl::ToDoubleSeconds(half_life) / M_LN2;
  return at_end * Left(now - until, half_life);
}

void AddHours(const Holding& holding, GpuHours& hours) {
  if (holding.gpus == 0) return;
  for (db::Micros at = holding.from; at < holding.until;) {
    const int64_t hour = at / db::kHour;
    const db::Micros end = std::min(holding.until, (hour + 1) * db::kHour);
    hours[hour] += 1e-6 * static_cast<double>(end - at) * holding.gpus;
    at = end;
  }
}

double SumOfWeek(const GpuHours& hours, db::Micros now) {
  double sum = 0;
  for (auto it = hours.lower_bound(now / db::kHour - kHoursOfWeek); it != hours.end(); ++it)
    sum += it->second;
  return sum;
}

void UsageLedger::Restore(const db::ServiceState& service) {
  rows_.clear();
  hours_.clear();
  for (const db::UsageRow& row : service.usage) rows_[row.owner] = row;
  for (const db::UsageHourRow& row : service.usage_hours)
    hours_[{row.owner, row.partition}][row.hour] = row.gpu_seconds;
}

void UsageLedger::Charge(const Holding& holding, db::Micros now, db::WriteBatch& batch) {
  const double seconds = holding.seconds();
  if (seconds == 0) return;
  db::UsageRow row = At(holding.owner, now);
  const double decayed = DecayedSeconds(holding.from, holding.until, now, half_life_);
  row.decayed_node_seconds += decayed * holding.nodes;
  row.decayed_gpu_seconds += decayed * holding.gpus;
  row.node_seconds += seconds * holding.nodes;
  row.gpu_seconds += seconds * holding.gpus;
  rows_[holding.owner] = row;
  batch.usage.push_back(std::move(row));
  if (holding.gpus == 0) return;
  GpuHours& hours = hours_[{holding.owner, holding.partition}];
  AddHours(holding, hours);
  const int64_t newest = hours.rbegin()->first;
  hours.erase(hours.begin(), hours.upper_bound(newest - db::kUsageHours));
  for (auto it = hours.lower_bound(holding.from / db::kHour); it != hours.end(); ++it)
    batch.usage_hours.push_back({holding.owner, holding.partition, it->first, it->second});
}

db::UsageRow UsageLedger::At(const std::string& owner, db::Micros now) const {
  const auto it = rows_.find(owner);
  db::UsageRow row;
  if (it != rows_.end()) row = it->second;
  const double left = Left(now - row.at, half_life_);
  row.owner = owner;
  row.decayed_node_seconds *= left;
  row.decayed_gpu_seconds *= left;
  row.at = std::max(row.at, now);
  return row;
}

std::vector<std::string> UsageLedger::owners() const {
  std::vector<std::string> names;
  for (const auto& [owner, row] : rows_) names.push_back(owner);
  return names;
}

std::vector<std::pair<std::string, std::string>> UsageLedger::queues() const {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& [queue, hours] : hours_) found.push_back(queue);
  return found;
}

double UsageLedger::GpuSecondsOfWeek(const std::string& owner, const std::string& partition,
                                     db::Micros now) const {
  const auto it = hours_.find({owner, partition});
  return it == hours_.end() ? 0 : SumOfWeek(it->second, now);
}

}  // namespace scalelab::server
