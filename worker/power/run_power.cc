#include "worker/power/run_power.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace scalelab::worker {
namespace {

// Shorter windows have too few readings.
constexpr double kShortest = 1;  // s

// Returns the metric that a rank has reported with an event; NaN if it has not.
double Reported(const v1::Event& event, const char* key) {
  const auto it = event.metrics().find(key);
  return it == event.metrics().end() ? std::nan("") : it->second;
}

// Adds a metric to an event and to the columns of its batch. Does nothing if a later line has a value of this name.
void AddMetric(const std::string& key, double value, v1::Event& event, v1::EventBatch& batch) {
  auto column = std::find_if(batch.mutable_columns()->begin(), batch.mutable_columns()->end(),
                             [&](const v1::PointColumn& of) { return of.key() == key; });
  const bool found = column != batch.mutable_columns()->end();
  if (found && column->line_size() > 0 && *column->line().rbegin() >= event.line()) return;
  v1::PointColumn& target = found ? *column : *batch.add_columns();
  target.set_key(key);
  target.add_line(event.line());
  target.add_step(-1);
  target.add_time(event.time());
  target.add_value(value);
  (*event.mutable_metrics())[key] = value;
}

}  // namespace

RunPower::RunPower(const v1::RunSpec& spec, std::shared_ptr<const PowerHistory> history)
    : warmup_(spec.warmup_steps()), global_batch_(spec.global_batch()), history_(std::move(history)) {}

void RunPower::Observe(v1::EventBatch& batch) {
  std::set<int64_t> others;  // lines that are not steps
  v1::Event* finish = nullptr;
  for (v1::Event& event : *batch.mutable_events()) {
    others.insert(event.line());
    if (event.kind() == v1::Event::START && !start_) start_ = event.time();
    if (event.kind() == v1::Event::FINISH) finish = &event;
  }
  std::map<int64_t, Step> steps;  // by line
  for (const v1::PointColumn& column : batch.columns()) {
    const bool is_total = column.key() == "step/total_s";
    for (int i = 0; i < column.line_size(); ++i) {
      if (column.line(i) < next_line_ || others.contains(column.line(i))) continue;
      Step& step = steps[column.line(i)];
      step.time = column.time(i);
      if (is_total) step.seconds = column.value(i);
    }
  }
  for (const auto& [line, step] : steps) AddStep(step);
  next_line_ = std::max(next_line_, batch.end_line());
  if (finish == nullptr) return;
  if (!results_) results_ = Results(*finish);
  for (const auto& [key, value] : *results_) {
    if (!finish->metrics().contains(key)) AddMetric(key, value, *finish, batch);
  }
}

void RunPower::AddStep(const Step& step) {
  ++steps_;
  const std::optional<double> before = std::exchange(last_step_, step.time);
  if (steps_ <= warmup_) return;
  // If a step reports no duration, it has lasted since the event of the previous step.
  if (step.seconds) {
    AddSpan(step.time - *step.seconds, step.time);
  } else if (before || start_) {
    AddSpan(before ? *before : *start_, step.time);
  } else {
    return;
  }
  ++measured_;
}

void RunPower::AddSpan(double begin, double end) {
  seconds_ += end - begin;
  const PowerValues use = history_->Between(begin, end);
  for (int q = 0; q < kPowerQuantities; ++q) sums_[q] += use[q];
}

std::map<std::string, double> RunPower::Results(const v1::Event& finish) const {
  PowerValues sums = sums_;
  double seconds = seconds_, samples_per_second = std::nan("");
  if (steps_ == 0) {  // the whole attempt
    const double begin = start_.value_or(history_->begin());
    seconds = finish.time() - begin;
    sums = history_->Between(begin, finish.time());
  } else if (const double reported = Reported(finish, "run/throughput_mean"); reported > 0) {
    samples_per_second = reported;
  } else if (global_batch_ > 0 && measured_ > 0) {
    samples_per_second = global_batch_ * static_cast<double>(measured_) / seconds;
  }
  std::map<std::string, double> results;
  if (!(seconds >= kShortest)) return results;
  results["run/energy_joules"] = sums[kJoules];
  results["run/joules_per_sample"] = sums[kJoules] / seconds / samples_per_second;
  results["run/gpu_utilisation"] = sums[kUtilisation] / seconds;
  results["run/gpu_power_w"] = sums[kWatts] / seconds;
  results["run/gpu_clock_mhz"] = sums[kClockMhz] / seconds;
  results["run/gpu_throttled"] = sums[kThrottled] / seconds;
  results["run/gpu_memory_bytes"] = history_->peak_memory();
  std::erase_if(results, [](const auto& result) { return !std::isfinite(result.second); });
  return results;
}

}  // namespace scalelab::worker
