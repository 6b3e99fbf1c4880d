#include "analysis/points.h"

#include <algorithm>

#include "catalog/metric_ranges.h"

namespace scalelab::analysis {
namespace {

// Values were checked when they were stored, but older versions did not check them.
template <class Add>
void AddUsable(const std::optional<double>& value, const MetricRange& range, Point& point, Add add) {
  if (!value.has_value()) return;
  if (range.Contains(*value)) return add(*value);
  point.refused.push_back(std::string(range.name) + " " + WhyImpossible(range.name, *value) +
                          "; the value is not used");
}

void AddUsable(const std::optional<double>& value, const MetricRange& range, Point& point,
               std::vector<double>& to) {
  AddUsable(value, range, point, [&](double usable) { to.push_back(usable); });
}

}  // namespace

void Point::Reserve(size_t count) {
  throughput.Reserve(count);
  for (std::vector<double>* values :
       {&epoch_seconds, &comm_share, &peak_memory, &accuracy, &train_loss, &concurrent})
    values->reserve(count);
  results.reserve(count);
}

const Point* Hardware::Find(size_t cell) const {
  const auto it = place.find(cell);
  return it == place.end() ? nullptr : &points[it->second];
}

void AddResults(const db::CurveRow& row, const std::vector<int>& block_of_repeat,
                const Concurrency* concurrency, Point& point) {
  static const MetricRange &throughput = RangeOf("run/throughput"), &epoch = RangeOf("run/epoch_seconds"),
                           &share = RangeOf("run/comm_share"), &memory = RangeOf("run/peak_memory_bytes"),
                           &accuracy = RangeOf("run/accuracy"), &loss = RangeOf("run/train_loss"),
                           &time = RangeOf("run/time_to_accuracy_s");
  ++point.succeeded;
  const int not_failed = 1 + row.noisy_attempts + row.continued_attempts + row.cancelled_attempts;
  if (row.attempts > not_failed) ++point.retried;
  if (row.noisy_attempts > 0) ++point.rerun;
  point.rerun_attempts += row.noisy_attempts;
  if (row.continued_attempts > 0) ++point.continued;
  if (row.cause == db::Cause::kNoisy) ++point.noisy;
  if (!row.message.empty()) point.refused.push_back(row.message);
  AddUsable(row.throughput, throughput, point, [&](double value) {
    if (row.repeat < 0) return;
    point.throughput.block.push_back(block_of_repeat[row.repeat]);
    point.throughput.value.push_back(value);
    if (row.started > 0) point.throughput.time.push_back(static_cast<double>(row.started) / 1e6);
    point.results.push_back(&row);
  });
  AddUsable(row.epoch_seconds, epoch, point, point.epoch_seconds);
  AddUsable(row.comm_share, share, point, point.comm_share);
  AddUsable(row.peak_memory, memory, point, point.peak_memory);
  AddUsable(row.accuracy, accuracy, point, point.accuracy);
  AddUsable(row.train_loss, loss, point, point.train_loss);
  AddUsable(row.time_to_accuracy, time, point, point.time_to_accuracy);
  if (concurrency == nullptr) return;
  point.concurrent.push_back(concurrency->mean);
  point.most_concurrent = std::max(point.most_concurrent, concurrency->most);
}

}  // namespace scalelab::analysis
